//! Builds, searches and checks of vectors that lie on a device, against the same vectors in host
//! memory.

use std::sync::Arc;

use half::f16;

use crate::gpu::{Buffer, Gpu};
use crate::search::{Search, Searcher};
use crate::{
    Builder, Descent, Device, DeviceMemory, DeviceResults, DeviceRows, ElementType, ExactSearch, IdSet,
    Index, Metric, Progress, Start, Strategy, Synth, SynthKind, Vectors,
};

/// Devices to test: the emulator, and a GPU where there is one.
fn devices() -> Vec<Device> {
    let gpu = Gpu::cuda_for_tests().map(|_| Device::Cuda(0));
    [Device::Emulated].into_iter().chain(gpu).collect()
}

/// The vectors in memory of a device that the caller owns, with gaps of `gap` bytes.
fn lent(vectors: &Vectors, device: Device, gap: usize) -> Vectors {
    let gpu = device.gpu().unwrap().unwrap();
    let row = vectors.dim() * vectors.element_type().size();
    let stride = row + gap;
    let bytes = vectors.len() * stride;
    let mut array: Buffer<u8> = gpu.buffer("array", bytes).unwrap();
    array.upload_rows(0, vectors.len(), stride, |rows| vectors.bytes_of_row(rows.start)).unwrap();
    gpu.synchronize().unwrap();
    let (address, owner) = array.lend().unwrap();
    let rows = DeviceRows::new(address, vectors.len(), vectors.dim(), vectors.element_type(), device);
    // SAFETY: the owner keeps the array; an emulator's is in ordinary memory.
    unsafe { Vectors::from_device(rows.stride(stride), owner) }.unwrap()
}

/// All of an index that a file holds.
fn bytes(index: &Index) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.tagore");
    index.save(&path).unwrap();
    std::fs::read(path).unwrap()
}

/// Builds from host memory and from the device; the same bytes, and no copy on the host.
fn check_build(base: &Vectors, builder: &Builder, gap: usize) {
    for device in devices() {
        let builder = builder.clone().device(device);
        let there = lent(base, device, gap);
        let index = builder.build(&there).unwrap();
        assert!(!there.is_mirrored(), "{device}: the rows were copied to the host");
        let expected = builder.build(base).unwrap();
        let kind = builder.strategy().kind();
        assert!(bytes(&index) == bytes(&expected), "{device}, {kind}, {}", base.element_type());
        index.check_base(base).unwrap();
    }
}

fn typed(values: &[f32], dim: usize, element: ElementType) -> Vectors {
    let whole = || values.iter().map(|x| (x * 16.0 + 128.0).clamp(0.0, 255.0));
    match element {
        ElementType::F32 => Vectors::from_f32(values.to_vec(), dim),
        ElementType::F16 => Vectors::from_f16(values.iter().map(|&x| f16::from_f32(x)).collect(), dim),
        ElementType::Bf16 | ElementType::B1 => unreachable!("not in memory of a device"),
        ElementType::U8 => Vectors::from_u8(whole().map(|x| x as u8).collect(), dim),
        ElementType::I8 => Vectors::from_i8(whole().map(|x| (x - 128.0) as i8).collect(), dim),
    }
    .unwrap()
}

#[test]
fn builds_from_a_device_have_the_same_bytes_and_copy_nothing_to_the_host() {
    let values = Synth::new(110, 9, 5).unwrap().base().to_f32().unwrap();
    let types = [ElementType::F32, ElementType::F16, ElementType::U8, ElementType::I8];
    let metrics = [Metric::L2, Metric::Cosine, Metric::InnerProduct];
    let strategies =
        [Strategy::cagra(), Strategy::nsg(), Strategy::vamana(), Strategy::nssg(), Strategy::dpg()];
    for (number, strategy) in strategies.into_iter().enumerate() {
        let base = typed(&values, 9, types[number % types.len()]);
        let start = if number == 1 { Start::Cells } else { Start::Auto };
        let builder = Builder::new(strategy.degree(6)).knn(12).start(start);
        let gap = [0, 6, 3, 7, 4][number] * base.element_type().size();
        check_build(&base, &builder.metric(metrics[number % metrics.len()]), gap);
    }
}

#[test]
fn floats_that_are_bytes_become_bytes_on_the_device() {
    let whole: Vec<f32> =
        typed(&Synth::new(100, 8, 1).unwrap().base().to_f32().unwrap(), 8, ElementType::U8).to_f32().unwrap();
    let base = Vectors::from_f32(whole, 8).unwrap();
    for metric in [Metric::L2, Metric::Cosine] {
        let builder = Builder::new(Strategy::cagra().degree(6)).knn(10).start(Start::Cells).metric(metric);
        check_build(&base, &builder, 0);
    }
}

#[test]
fn rows_that_no_edge_leads_to_are_attached_on_the_device() {
    // Clusters far apart: layers, and nodes that only the tree reaches.
    let values = (0..120 * 4).map(|i| ((i / 4 % 6) * 1000 + (i * i * 7 + i / 4 * 31) % 97) as f32 + 0.5);
    let base = Vectors::from_f32(values.collect(), 4).unwrap();
    for strategy in [Strategy::nsg(), Strategy::cagra()] {
        check_build(&base, &Builder::new(strategy.degree(4)).knn(8), 0);
    }
}

#[test]
fn a_base_remembers_what_a_build_finds_in_it() {
    let base = Synth::of_kind(SynthKind::Repeated { copies: 3 }, 90, 5, 1).unwrap().base();
    Builder::new(Strategy::nsg().degree(6)).knn(12).device(Device::Cpu).build(&base).unwrap();
    assert_eq!(base.repeated.get().map(|repeated| repeated.len()), Some(60));
    assert!(base.largest.get().is_some());
}

#[test]
fn repeated_rows_and_zero_vectors_are_found_on_the_device() {
    let mut values =
        Synth::of_kind(SynthKind::Repeated { copies: 5 }, 150, 7, 2).unwrap().base().to_f32().unwrap();
    values[7 * 20..7 * 22].fill(0.0);
    values[7 * 21] = -0.0;
    values[7 * 60..7 * 61].fill(0.0);
    for (metric, element) in
        [(Metric::L2, ElementType::F32), (Metric::Cosine, ElementType::F32), (Metric::L2, ElementType::U8)]
    {
        let base = typed(&values, 7, element);
        check_build(&base, &Builder::new(Strategy::nssg().degree(6)).knn(12).metric(metric), 0);
    }
}

#[test]
fn rows_left_out_are_left_out_on_the_device() {
    let base = Synth::new(210, 6, 4).unwrap().base();
    let stay = IdSet::from_ids(210, (0..210).filter(|row| row % 4 > 0)).unwrap();
    check_build(&base, &Builder::new(Strategy::nsg().degree(6)).knn(12).among(stay), 8);
}

#[test]
fn faulty_values_on_a_device_are_named_as_those_in_host_memory() {
    let base = Synth::new(90, 5, 1).unwrap().base();
    for device in devices() {
        for (row, dim, wrong) in [(89, 4, f32::NAN), (0, 0, f32::NEG_INFINITY), (41, 2, 3e38)] {
            let mut values = base.to_f32().unwrap();
            values[row * 5 + dim] = wrong;
            let host = Vectors::from_f32(values, 5).unwrap();
            let there = lent(&host, device, 8);
            let silent = Progress::silent();
            let (found, expected) =
                (there.validate_for(Metric::L2, &silent), host.validate_for(Metric::L2, &silent));
            assert_eq!(found.unwrap_err().to_string(), expected.unwrap_err().to_string());
            assert!(!there.is_mirrored());
        }
        let there = lent(&base, device, 0);
        there.validate(&Progress::silent()).unwrap();
        assert_eq!(there.device(), Some(device));
        // What a device does not do reads a copy.
        assert_eq!(there.to_f32().unwrap(), base.to_f32().unwrap());
        assert!(there.is_mirrored() && format!("{there:?}").contains("bytes on"), "{there:?}");
    }
}

#[test]
fn searches_take_bases_and_queries_on_a_device() {
    let synth = Synth::new(300, 12, 4).unwrap();
    let (base, queries) = (synth.base(), synth.queries(9));
    for (metric, device) in [Metric::L2, Metric::Cosine, Metric::InnerProduct]
        .into_iter()
        .flat_map(|m| devices().into_iter().map(move |d| (m, d)))
    {
        let index = Builder::new(Strategy::cagra()).metric(metric).device(Device::Cpu).build(&base).unwrap();
        let there = (lent(&base, device, 16), lent(&queries, device, 4));
        let silent = Progress::silent();
        let on_host = Searcher::new(index.clone(), base.clone(), &silent).unwrap();
        let expected = on_host.search(&queries, Search::new(5).beam(20), &silent).unwrap();
        let searcher = Searcher::new(index, there.0.clone(), &silent).unwrap().device(device).unwrap();
        let found = searcher.search(&there.1, Search::new(5).beam(20), &silent).unwrap();
        // One query comes to the host.
        let one = lent(&queries.select(&[4]).unwrap(), device, 4);
        let one = searcher.search(&one, Search::new(5).beam(20), &silent).unwrap();
        assert!(one.neighbors(0).eq(expected.neighbors(4)), "{metric} on {device}");
        assert_eq!(found.into_parts(), expected.into_parts(), "{metric} on {device}");
        let wrong = lent(&Vectors::from_f32(vec![f32::NAN; 12], 12).unwrap(), device, 0);
        let error = searcher.search(&wrong, Search::new(5), &silent).unwrap_err().to_string();
        assert!(error.contains("row 0, dimension 0: found NaN"), "{error}");
        let exact = ExactSearch::new(5).metric(metric);
        let (truth, _) = exact.clone().device(device).run(&there.0, &there.1).unwrap();
        let (expected, _) = exact.device(Device::Cpu).run(&base, &queries).unwrap();
        assert_eq!(truth.ids(3), expected.ids(3));
        assert!(!there.0.is_mirrored() && !there.1.is_mirrored(), "{metric} on {device}");
    }
}

/// What `write` leaves in memory of a device: ids and distances.
fn results(device: Device, count: usize, write: impl FnOnce(&DeviceResults)) -> (Vec<u32>, Vec<f32>) {
    let [ids, distances] = [(); 2].map(|()| DeviceMemory::new(device, count).unwrap());
    // SAFETY: both have room for `count` values, and nothing else uses them.
    write(&unsafe { DeviceResults::new(ids.address(), distances.address(), device) });
    (ids.read().unwrap(), distances.read().unwrap().into_iter().map(f32::from_bits).collect())
}

#[test]
fn results_stay_on_a_device() {
    let synth = Synth::new(260, 10, 4).unwrap();
    let (base, queries, silent) = (synth.base(), synth.queries(7), Progress::silent());
    for device in devices() {
        let (there, asked) = (lent(&base, device, 0), lent(&queries, device, 0));
        let descent = Descent::new().knn(6).device(device);
        let expected = descent.build(&base).unwrap().into_parts();
        let found = results(device, 260 * 6, |to| drop(descent.build_into(&there, to).unwrap()));
        assert_eq!(found, expected, "{device}");
        // From host memory, and built on the CPU.
        let on_cpu = Descent::new().knn(6).device(Device::Cpu);
        let expected = on_cpu.build(&base).unwrap().into_parts();
        assert_eq!(results(device, 260 * 6, |to| drop(on_cpu.build_into(&base, to).unwrap())), expected);

        let exact = ExactSearch::new(4).device(device);
        let (truth, _) = exact.run(&base, &queries).unwrap();
        let found = results(device, 7 * 4, |to| drop(exact.run_into(&there, &asked, to).unwrap()));
        assert_eq!(found.0, (0..7).flat_map(|query| truth.ids(query).to_vec()).collect::<Vec<_>>());

        let index = Builder::new(Strategy::nsg()).device(Device::Cpu).build(&base).unwrap();
        let searcher = Searcher::new(index, there.clone(), &silent).unwrap().device(device).unwrap();
        for (search, batch) in [(Search::new(5).beam(20), 3), (Search::new(5).radius(9.0), 1 << 16)] {
            let searcher = searcher.clone().batch(batch);
            let expected = searcher.search(&queries, search, &silent).unwrap().into_parts();
            let find = |to: &DeviceResults| searcher.search_into(&asked, search, to, &silent).unwrap();
            assert_eq!(results(device, 7 * 5, find), expected, "{device}, {search:?}");
        }
        assert!(!there.is_mirrored() && !asked.is_mirrored());
        // SAFETY: wrong addresses are not written to.
        let nowhere = unsafe { DeviceResults::new(0, 4, device) };
        let error = exact.run_into(&there, &asked, &nowhere).unwrap_err().to_string();
        assert!(error.starts_with("ids: found 0x0, expected the address of 28 values"), "{error}");
    }
}

#[test]
fn a_row_of_a_device_is_copied_alone() {
    let base = Synth::new(30, 5, 4).unwrap().base();
    for device in devices() {
        let there = lent(&base, device, 8);
        for row in [0, 7, 29] {
            assert_eq!(there.row_to_f32(row).unwrap(), base.row_to_f32(row).unwrap(), "{device}");
        }
        assert!(!there.is_mirrored());
        let error = there.row_to_f32(30).unwrap_err().to_string();
        assert_eq!(error, "row: found 30, expected below 30");
        assert_eq!(there.to_f32().unwrap(), base.to_f32().unwrap());
        assert!(there.is_mirrored());
        assert_eq!(there.row_to_f32(7).unwrap(), base.row_to_f32(7).unwrap(), "{device}");
    }
}

#[test]
fn results_that_fit_no_memory_are_refused() {
    let room = [0u32; 2];
    let address = room.as_ptr().expose_provenance() as u64;
    // SAFETY: nothing is written.
    let results = unsafe { DeviceResults::new(address, address, Device::Emulated) };
    for count in [usize::MAX, 1 << 62, (1 << 62) - 1] {
        let error = results.check(count).unwrap_err().to_string();
        let found = format!("ids: found room for {count} values of 4 bytes at {address:#x}");
        assert_eq!(error, format!("{found}, expected values that fit memory"));
    }
    results.check(2).unwrap();
}

#[test]
fn a_device_checks_queries_while_it_searches_for_them() {
    let silent = Progress::silent();
    let of = |rows: usize, value: fn(usize) -> f32| {
        Vectors::from_f32((0..rows * 8).map(value).collect(), 8).unwrap()
    };
    let whole = |i: usize| (i * 37 % 251) as f32;
    let bytes = of(300, whole);
    let index = Arc::new(Builder::new(Strategy::cagra()).device(Device::Cpu).build(&bytes).unwrap());
    let fractions = of(9, |i| (i * 37 % 251) as f32 + 0.25);
    let mut values: Vec<f32> = (0..9 * 8).map(whole).collect();
    values[5 * 8 + 3] = f32::INFINITY;
    let faulty = Vectors::from_f32(values, 8).unwrap();
    for device in devices() {
        let there = lent(&bytes, device, 0);
        let searcher = Searcher::new(Arc::clone(&index), there, &silent).unwrap().device(device).unwrap();
        let search = Search::new(4).beam(16);
        for queries in [of(9, whole), fractions.clone()] {
            let expected = searcher.search(&queries, search, &silent).unwrap().into_parts();
            let asked = lent(&queries, device, 4);
            let find = |to: &DeviceResults| searcher.search_into(&asked, search, to, &silent).unwrap();
            assert_eq!(results(device, 9 * 4, find), expected, "{device}");
            assert!(!asked.is_mirrored());
        }
        let asked = lent(&faulty, device, 4);
        let find = |to: &DeviceResults| {
            let error = searcher.search_into(&asked, search, to, &silent).unwrap_err().to_string();
            assert!(error.contains("row 5, dimension 3: found inf"), "{error}");
        };
        results(device, 9 * 4, find);
    }
}

#[test]
fn the_cpu_takes_vectors_of_a_device_by_a_copy() {
    let base = Synth::new(120, 6, 4).unwrap().base();
    for (metric, device) in [(Metric::L2, Device::Emulated), (Metric::Cosine, Device::Emulated)] {
        let there = lent(&base, device, 0);
        let descent = Descent::new().knn(9).metric(metric).device(Device::Cpu);
        let (found, expected) = (descent.build(&there).unwrap(), descent.build(&base).unwrap());
        assert_eq!(found.neighbors(17), expected.neighbors(17));
        let builder = Builder::new(Strategy::nsg()).metric(metric).device(Device::Cpu);
        assert!(bytes(&builder.build(&there).unwrap()) == bytes(&builder.build(&base).unwrap()));
    }
}

#[test]
fn arrays_that_do_not_suit_are_refused() {
    let values = vec![0u64; 100];
    let address = values.as_ptr().expose_provenance() as u64;
    let text = |rows: DeviceRows| {
        // SAFETY: wrong arrays are not read.
        let error = unsafe { Vectors::from_device(rows, ()) }.err().unwrap();
        error.to_string()
    };
    let rows = |address, n, dim| DeviceRows::new(address, n, dim, ElementType::F32, Device::Emulated);
    assert_eq!(text(rows(address, 10, 0)), "dim: found 0, expected 1 to 4096");
    assert_eq!(text(rows(0, 10, 4)), "address: found null, expected that of 160 bytes of emulated");
    assert_eq!(
        text(rows(address, 10, 4).stride(14)),
        "stride: found 14, expected a multiple of 4 bytes, at least the 16 of a row"
    );
    assert!(text(rows(8, 2, 4).stride(usize::MAX & !3)).starts_with("rows: found 2, expected"));
    let odd = text(rows(address + 2, 10, 4));
    assert!(odd.ends_with("expected a multiple of 4, the bytes of f32"), "{odd}");
    let on_cpu = DeviceRows::new(address, 10, 4, ElementType::F32, Device::Cpu);
    assert_eq!(text(on_cpu), "device: found cpu, expected cuda:N, whose memory holds the values");
    let elsewhere = DeviceRows::new(address, 10, 4, ElementType::F32, Device::Cuda(0));
    match Gpu::cuda(0) {
        Ok(_) => assert!(text(elsewhere).contains("expected 160 bytes of memory of cuda:0")),
        Err(error) => assert_eq!(text(elsewhere), error.to_string()),
    }
}
