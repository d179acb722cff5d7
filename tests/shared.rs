//! Builds that several devices share: the index is that of one device, byte for byte.

use std::fs;

use half::f16;
use tagore::{
    Builder, CellSettings, Collect, Compression, DataShape, Descent, Device, ElementType, Index, Iterations,
    Metric, Progress, Start, Strategy, Synth, Vectors,
};

/// As many devices as there are names, since each is named once.
fn devices(count: usize) -> Vec<Device> {
    let names = ["emulated", "emulated:8.9", "emulated:8.0"];
    names[..count].iter().map(|name| name.parse().unwrap()).collect()
}

/// Rows in groups of very different sizes. Some rows are equal.
fn base(element: ElementType) -> Vectors {
    let mut values: Vec<f32> = Vec::new();
    let rows = Synth::new(780, 12, 5).unwrap().base();
    for row in 0..780 {
        let group = if row % 2 == 0 { 0 } else { row % 32 };
        let of = if row % 97 == 0 { 3 } else { row };
        values.extend(rows.row_to_f32(of).unwrap().iter().map(|x| (x / 4.0 + 30.0 + group as f32).floor()));
    }
    let made = match element {
        ElementType::F16 => Vectors::from_f16(values.into_iter().map(f16::from_f32).collect(), 12),
        ElementType::U8 => Vectors::from_u8(values.into_iter().map(|x| x as u8).collect(), 12),
        ElementType::I8 => Vectors::from_i8(values.into_iter().map(|x| x as i8).collect(), 12),
        _ => Vectors::from_f32(values, 12),
    };
    made.unwrap()
}

fn builder(strategy: Strategy, metric: Metric, clusterings: usize) -> Builder {
    let cells = CellSettings { nodes_per_cell: Some(96), probes: Some(2), clusterings: Some(clusterings) };
    let descent = Descent::new().knn(8).metric(metric).start(Start::Cells).cells(cells);
    Builder::new(strategy.degree(6)).layers(false).descent(descent)
}

fn bytes(index: &Index) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("index.tagore");
    index.save(&file).unwrap();
    fs::read(file).unwrap()
}

/// Checks that `count` devices build the index of one. Each takes seconds on the emulator.
fn check(builder: &Builder, base: &Vectors, count: usize) {
    let one = bytes(&builder.clone().devices(&devices(1)).build(base).unwrap());
    let builder = builder.clone().devices(&devices(count));
    let data = DataShape::inspect(base, &Progress::silent()).unwrap();
    assert!(builder.shares(&data).unwrap());
    let (index, stats) = builder.build_with_stats(base, None).unwrap();
    let what = format!("{} {} on {count} devices", index.kind(), base.element_type());
    assert!(bytes(&index) == one, "{what}");
    let names: Vec<String> = devices(count).iter().map(Device::to_string).collect();
    assert_eq!((stats.descent.device, stats.prune.device), (names.join(","), names.join(",")), "{what}");
}

#[test]
fn several_devices_build_as_one() {
    // Candidates from paths, reverse edges filtered again.
    let of_paths = builder(Strategy::vamana(), Metric::L2, 1).iterations(Iterations::Fixed(0, 0));
    check(&of_paths, &base(ElementType::U8), 2);
    // Candidates from lists, edges by detours.
    let of_lists = builder(Strategy::cagra(), Metric::L2, 1).iterations(Iterations::Fixed(0, 1));
    check(&of_lists, &base(ElementType::F16), 2);
}

#[test]
fn several_devices_build_as_one_with_other_settings() {
    let base = base(ElementType::F32);
    let of_phases = builder(Strategy::cagra(), Metric::Cosine, 2).iterations(Iterations::Fixed(1, 2));
    check(&of_phases, &base, 3);
    let on_codes = builder(Strategy::nsg().collect(Collect::OneHop), Metric::L2, 1);
    check(&on_codes.iterations(Iterations::Fixed(0, 0)).compressed(Compression::Int8), &base, 2);
}

#[test]
fn the_first_device_builds_alone_what_is_not_shared() {
    let base = base(ElementType::F32);
    let data = DataShape::inspect(&base, &Progress::silent()).unwrap();
    let shares =
        |builder: &Builder, devices: &[Device]| builder.clone().devices(devices).shares(&data).unwrap();
    let cells = builder(Strategy::cagra(), Metric::L2, 1);
    assert!(shares(&cells, &devices(2)));
    assert!(!shares(&cells, &devices(1)));
    assert!(!shares(&cells, &[Device::Cpu, Device::Emulated]));
    // GPUs share many rows alone.
    let two = cells.clone().devices(&[Device::Cuda(0), Device::Cuda(1)]);
    let many = DataShape::new(8_000_000, 12, ElementType::F32).unwrap();
    assert!(!two.shares(&data).unwrap() && two.shares(&many).unwrap());
    let random = cells.clone().start(Start::Random);
    assert!(!shares(&random, &devices(2)));
    assert!(!shares(&builder(Strategy::cagra(), Metric::InnerProduct, 1), &devices(2)));
    let few = Synth::new(110, 12, 5).unwrap().base();
    let one = bytes(&random.clone().devices(&devices(1)).build(&few).unwrap());
    assert!(bytes(&random.devices(&devices(3)).build(&few).unwrap()) == one);
}
