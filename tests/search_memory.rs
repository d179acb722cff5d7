//! Memory of searches of one query, counted by the allocator. This test is a program of its own,
//! since the allocator would count other tests too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use half::f16;
use tagore::{
    Builder, Device, IdSet, Metric, Neighbor, Progress, Search, Searcher, Strategy, Synth, Vectors,
};

/// An allocator that counts the allocations of the calling thread, and their bytes.
struct Counting;

thread_local! {
    static COUNT: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

fn count(bytes: usize) {
    COUNT.with(|count| count.set((count.get().0 + 1, count.get().1 + bytes)));
}

// SAFETY: all memory is the system's; counting takes none.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promise about `layout`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's promise about `size`; the memory is the system's, with this layout.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `alloc` and `alloc_zeroed` took the memory from the system, with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_search_of_one_query_allocates_its_answer_alone() {
    let synth = Synth::new(2000, 20, 3).unwrap();
    let base = synth.base();
    let values: Vec<f32> =
        (0..base.len()).flat_map(|row| base.row_to_f32(row).unwrap().into_owned()).collect();
    let halves = Vectors::from_f16(values.into_iter().map(f16::from_f32).collect(), 20).unwrap();
    let queries = synth.queries(20);
    let rows: Vec<Vec<f32>> = (0..20).map(|query| queries.row_to_f32(query).unwrap().into_owned()).collect();
    let some = IdSet::from_ids(2000, (0..2000).filter(|id| id % 40 == 0)).unwrap();
    let is_even = |id: u32| id.is_multiple_of(2);
    for (base, metric) in
        [(base.clone(), Metric::L2), (base.clone(), Metric::Cosine), (halves, Metric::InnerProduct)]
    {
        let index = Builder::new(Strategy::cagra()).metric(metric).device(Device::Cpu).build(&base).unwrap();
        let searcher = Searcher::new(index, base, &Progress::silent()).unwrap();
        let searches =
            [Search::new(10).beam(20), Search::new(10).among(&some), Search::new(10).accept(&is_even)];
        for search in searches {
            let find = || rows.iter().map(|row| searcher.search_one(row, search).unwrap());
            find().for_each(drop);
            for row in &rows {
                let before = COUNT.get();
                let found = searcher.search_one(row, search).unwrap();
                let after = COUNT.get();
                assert_eq!(found.len(), 10);
                let taken = (after.0 - before.0, after.1 - before.1);
                assert_eq!(taken, (1, 10 * size_of::<Neighbor>()), "{metric}, {search:?}");
            }
        }
    }
}

#[test]
fn a_searcher_does_not_copy_its_base() {
    let base = Synth::new(3000, 50, 3).unwrap().base();
    let index = Builder::new(Strategy::cagra()).knn(32).device(Device::Cpu).build(&base).unwrap();
    let one = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build().unwrap();
    let before = COUNT.get();
    let searcher = one.install(|| Searcher::new(index, base, &Progress::silent())).unwrap();
    let clones: Vec<Searcher> = (0..10).map(|_| searcher.clone()).collect();
    let taken = COUNT.get().1 - before.1;
    assert!(taken < 64 << 10, "{taken} bytes, of a base of 600,000");
    drop(clones);
}
