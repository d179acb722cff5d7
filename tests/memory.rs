//! Host memory of builds on the CPU, counted by the allocator, against their plans. This test is a
//! program of its own, since the allocator would count other tests too.
#![expect(clippy::unwrap_used, reason = "a test stops at the first error")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use tagore::{
    Builder, Collect, Compression, DataShape, Descent, Device, Iterations, Metric, Progress, Start, Strategy,
    Synth, Target, Vectors,
};

/// An allocator that counts the bytes in use and their peak.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all memory is the system's; counting takes none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: `alloc` and `alloc_zeroed` took the memory from the system, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const THREADS: usize = 2;

/// Bytes allowed beyond the plan, for any data set: scratch of threads, progress, descriptions.
const SMALL: u64 = 64 << 10;

/// Vectors with hubs: every 500th is 30 times longer, so under inner product nearly all nodes have
/// edges to it.
fn with_hubs(n: usize) -> Vectors {
    let base = Synth::new(n, 8, 3).unwrap().base();
    let scale = |row: usize| if row.is_multiple_of(500) { 30.0 } else { 1.0 };
    let values = (0..n)
        .flat_map(|row| base.row_to_f32(row).unwrap().iter().map(|x| x * scale(row)).collect::<Vec<_>>());
    Vectors::from_f32(values.collect(), 8).unwrap()
}

/// Long rows, of which the last 150 repeat the first.
fn with_repeated(n: usize) -> Vectors {
    let base = Synth::new(n - 150, 64, 3).unwrap().base();
    let rows = (0..n).map(|row| row % base.len());
    Vectors::from_f32(rows.flat_map(|row| base.row_to_f32(row).unwrap().into_owned()).collect(), 64).unwrap()
}

/// Builds `base`, and compares the peak of memory with the plan.
fn check(base: &Vectors, builder: &Builder, case: &str) {
    let threads = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().unwrap();
    threads.broadcast(|_| ());
    let data = DataShape::inspect(base, &Progress::silent()).unwrap();
    let plan = builder.plan(&data, Target { threads: THREADS, ..Target::cpu() }).unwrap();
    // The counts exclude freed memory that the allocator keeps.
    let planned = plan.host.iter().map(|stage| {
        let buffers = stage.buffers.buffers();
        buffers.filter(|buffer| buffer.0 != "kept by the allocator").map(|buffer| buffer.1).sum()
    });
    let planned: u64 = planned.max().unwrap();
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    threads.install(|| builder.build(base)).unwrap();
    let taken = (PEAK.load(Ordering::Relaxed) - before) as u64;
    // Plans hold on every processor: where pairs are filtered by codes, panels take half.
    assert!(taken <= planned + SMALL && 10 * taken >= 7 * planned, "{case}: {taken} of {planned}");
}

#[test]
fn a_build_on_the_cpu_takes_no_more_than_is_planned() {
    let (base, repeated) = (with_hubs(1000), with_repeated(1000));
    let kinds = [Strategy::nsg(), Strategy::nssg(), Strategy::cagra(), Strategy::dpg()];
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        for (k, start) in [(16, Start::Auto), (128, Start::Random), (16, Start::Cells)] {
            for strategy in &kinds {
                let strategy = strategy.clone().degree(if strategy.kind() == "cagra" { 16 } else { 64 });
                let case = format!("{} {metric}, K = {k}, start {start}", strategy.kind());
                let descent = Descent::new().knn(k).metric(metric).start(start).device(Device::Cpu);
                let builder = Builder::new(strategy).descent(descent.iterations(Iterations::Fixed(1, 1)));
                check(&base, &builder, &case);
                check(&repeated, &builder, &format!("{case}, repeated rows"));
            }
        }
    }
    check_codes(&base);
}

/// Checks builds on codes in bytes. No test of its own, since tests that run at once would be
/// counted together.
fn check_codes(base: &Vectors) {
    for metric in [Metric::L2, Metric::InnerProduct, Metric::Cosine] {
        for (k, start) in [(64, Start::Auto), (128, Start::Random)] {
            for (strategy, degree) in [(Strategy::nsg(), 64), (Strategy::cagra(), 16), (Strategy::dpg(), 128)]
            {
                let case = format!("{} {metric}, K = {k}, start {start}, int8", strategy.kind());
                // Candidates from lists alone: these are settled.
                let strategy = strategy.degree(degree).collect(Collect::OneHop);
                let descent = Descent::new().knn(k).metric(metric).start(start).device(Device::Cpu);
                let builder = Builder::new(strategy).descent(descent.iterations(Iterations::Fixed(1, 1)));
                check(base, &builder.compressed(Compression::Int8), &case);
            }
        }
    }
}
