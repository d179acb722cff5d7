//! The plan of a build in tasks, `plan.json`, and what tasks need beside it: centres and repeated
//! rows.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::memory::task_memory;
use super::object::{NewPiece, ObjectLimits, numbers};
use super::store::ObjectStore;
use crate::atomic_file::AtomicFile;
use crate::cluster::assigner::RowRounding;
use crate::cluster::cpu::Centres;
use crate::index::{FNV_START, fnv1a};
use crate::outofcore::partition::{
    Found, PartitionInput, SPLITS, SUM_ROWS, chunk_rows, find_centres, find_repeated,
};
use crate::outofcore::plan::{ClusterPlan, RECORD_HEAD};
use crate::outofcore::run::OutOfCore;
use crate::outofcore::store::{Parameters, check_parameters, read_all, seal};
use crate::regular_file::{is_missing, open_planted, read_at_most};
use crate::vectors::embedding::Embedding;
use crate::{
    Builder, DataShape, Device, Error, Fingerprint, Format, MAX_ROWS, Metric, Repeated, Result, Strategy,
    Vectors,
};

/// The name of the plan's file.
pub(super) const PLAN: &str = "plan.json";

/// The kind of its record.
const KIND: &str = "plan";

/// The name of the object beside it.
pub(super) const PLAN_OBJECT: &str = "plan";

/// Maximum bytes of that file.
const MAX_PLAN: u64 = 1 << 20;

/// Parameters that are no settings of a builder.
const OTHERS: [&str; 6] = ["index", "input", "device", "host-memory", "gpu-memory", "cluster-size"];

/// The files of a build in tasks, and the size of its ranges.
#[derive(Clone, Debug)]
pub struct TaskFiles {
    /// The file of the data set, as workers open it.
    pub base: PathBuf,
    /// Its format.
    pub format: Format,
    /// The file of the index.
    pub output: PathBuf,
    /// Rows of a range, a multiple of 1,024.
    pub range_rows: usize,
}

/// All that decides the objects of a build.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    parameters: Parameters,
    pub base: PathBuf,
    pub format: Format,
    pub fingerprint: Fingerprint,
    pub output: PathBuf,
    /// The kind of device that the tasks run on.
    pub device: String,
    pub limits: ClusterPlan,
    /// Number of clusters.
    pub clusters: usize,
    pub range_rows: usize,
    /// Bits of the square of the largest norm under inner product.
    largest_square: u64,
    /// Bits of the components of the mean that is subtracted from rows; none if rows are not moved.
    mean: Vec<u32>,
    /// CRC-32 of the centres and of the repeated rows.
    content: u32,
    /// Host memory of a task of each stage, in bytes.
    pub memory: BTreeMap<String, u64>,
}

/// The content of the object beside the plan.
pub(super) struct Shared {
    pub centres: Centres,
    pub rounding: RowRounding,
    pub repeated: Repeated,
}

/// The description of that object.
#[derive(Serialize, Deserialize)]
struct SharedDescription {
    /// Bits of the scale of rounding.
    scale: u32,
    /// Components of an embedded row.
    dim: usize,
}

const CENTRES: u32 = 0;
const ROUNDING: u32 = 1;
const REPEATED: u32 = 2;

impl Plan {
    /// Makes the plan of `build`: finds repeated rows and centres.
    pub(super) fn new(build: &OutOfCore, base: &Vectors, files: &TaskFiles) -> Result<(Self, Shared)> {
        let OutOfCore { builder, plan: limits, .. } = build;
        let TaskFiles { base: path, format, output, range_rows } = files.clone();
        check_range(range_rows)?;
        builder.check_out_of_core(base.len())?;
        let k = builder.descent.k_for(base)?;
        let data = DataShape::new(base.len(), base.dim(), base.element_type())?;
        builder.check_for(&data)?;
        limits.check(base.len())?;
        let devices = builder.devices_for(limits.cluster_size)?;
        let parameters = build.parameters(base, &devices)?;
        let (device, progress) = (devices[0], &builder.descent.progress);
        let embedding = &Embedding::new(base, builder.descent.metric, progress)?;
        builder.warn_of_parts(base)?;
        let repeated = find_repeated(builder, base, limits, progress)?;
        let dim = embedding.dim(base.dim());
        let seed = builder.descent.seed;
        let input =
            PartitionInput { base, repeated: &repeated, embedding, plan: limits, device, seed, progress };
        let Found { centres, rounding, .. } = find_centres(&input, chunk_rows(limits, dim))?;
        let clusters = centres.count();
        let shared = Shared { centres, rounding, repeated };
        let memory = task_memory(builder, &data, limits, clusters, range_rows, shared.repeated.len())?;
        let plan = Self {
            parameters,
            base: path,
            format,
            fingerprint: Fingerprint::compute(base)?,
            output,
            device: device_kind(device)?,
            // The plan is that of any machine, whatever memory is free here.
            limits: limits.reading_base(false),
            clusters,
            range_rows,
            largest_square: embedding.largest_square().to_bits(),
            mean: embedding.mean().iter().map(|x| x.to_bits()).collect(),
            content: shared.crc(),
            memory,
        };
        let again = plan.builder()?;
        if again.all_parameters(k) != builder.all_parameters(k) {
            let expected = "a kind of index with a built-in filter: tasks read it from plan.json";
            return Err(Error::argument("filter", builder.strategy.filter.name(), expected));
        }
        Ok((plan, shared))
    }

    /// Saves the plan in `folder`. A folder with another plan is refused.
    pub(super) fn save(&self, folder: &Path, shared: &Shared) -> Result<ObjectStore> {
        match fs::create_dir(folder) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(Error::io(folder)(error));
            }
            _ => (),
        }
        let path = folder.join(PLAN);
        let record = self.record(&path)?;
        let hash = fnv1a(FNV_START, &record);
        // Its lock is held from the check on: of two plans, one is the folder's.
        let mut file = AtomicFile::create_unfollowed(&path)?;
        if fs::symlink_metadata(&path).is_ok() {
            let (found, store) = Self::open(folder)?;
            check_parameters(&path, &found.parameters, &self.parameters)?;
            if store.plan != hash {
                let expected = "an empty folder, or none: plan in a folder of its own";
                return Err(Error::file(&path, "the plan of another build", expected));
            }
        }
        let store = ObjectStore::new(folder, hash, self.object_limits());
        shared.put(&store)?;
        file.write_all(&record)?;
        file.commit()?;
        Ok(store)
    }

    /// Opens the plan of `folder`, and its objects.
    pub(super) fn open(folder: &Path) -> Result<(Self, ObjectStore)> {
        let path = folder.join(PLAN);
        let file = open_planted(&path, false).map_err(|error| match is_missing(&error) {
            true => Error::file(folder, format_args!("no {PLAN}"), "the folder of a plan: plan first"),
            false => error,
        })?;
        let content = read_at_most(&file, &path, MAX_PLAN)?;
        let plan: Self = read_all(KIND, &content).map_err(|flaw| {
            flaw.error(&path, "the plan of a build in tasks", "plan again in another folder")
        })?;
        plan.check()
            .map_err(|error| Error::file(&path, error.to_string(), "numbers of a build: plan again"))?;
        let store = ObjectStore::new(folder, fnv1a(FNV_START, &plan.record(&path)?), plan.object_limits());
        Ok((plan, store))
    }

    /// Checks the numbers of a plan from a file.
    fn check(&self) -> Result<()> {
        let Self { fingerprint, limits, clusters, range_rows, .. } = self;
        check_range(*range_rows)?;
        let rows = usize::try_from(fingerprint.rows).unwrap_or(usize::MAX);
        let data = DataShape::new(rows, fingerprint.dim as usize, fingerprint.element)?;
        limits.check(rows)?;
        // Splits make at most 16 clusters of one.
        let most = rows.min(limits.clusters.saturating_mul(1 << SPLITS));
        if !(2..=most).contains(clusters) {
            return Err(Error::argument("clusters", clusters, format_args!("2 to {most}")));
        }
        let builder = self.builder()?;
        builder.check_out_of_core(rows)?;
        builder.check_for(&data)?;
        let square = f64::from_bits(self.largest_square);
        if !(square.is_finite() && square >= 0.0) {
            return Err(Error::argument("largest square", square, "a finite number of at least 0"));
        }
        let is_mean = self.mean.is_empty() || self.mean.len() == data.dim;
        if !(is_mean && self.mean.iter().all(|&bits| f32::from_bits(bits).is_finite())) {
            let found = format!("{} numbers", self.mean.len());
            return Err(Error::argument("mean", found, format_args!("none, or {} finite ones", data.dim)));
        }
        Ok(())
    }

    /// The largest sizes of the objects of this plan.
    fn object_limits(&self) -> ObjectLimits {
        let Self { fingerprint, limits, clusters, range_rows, .. } = self;
        let bytes = |count: usize, each: usize| (count as u64).saturating_mul(each as u64);
        let dim = self.embedded_dim();
        let degree = self.builder().map_or(0, |builder| builder.strategy.max_degree());
        let record = RECORD_HEAD + fingerprint.element.row_bytes(fingerprint.dim as usize);
        let largest = [
            // Of a range: records and rows, and the sums of `assign`.
            bytes(*range_rows, record.max(4 + 4 * degree).max(12)),
            bytes(range_rows / SUM_ROWS + 2, 8 * dim),
            // Of a cluster: its lists. Of all clusters: centres, and pairs that share nodes.
            bytes(limits.cluster_size, 8 * degree),
            bytes(*clusters, 8 * dim),
            bytes(clusters.saturating_mul(*clusters), 12),
            // Repeated rows.
            bytes(fingerprint.rows as usize, 8),
        ];
        ObjectLimits {
            pieces: clusters.max(&self.ranges()).saturating_add(4),
            bytes: largest.into_iter().max().unwrap_or(0),
        }
    }

    /// The file of the plan. Its hash is in the names of all objects.
    fn record(&self, path: &Path) -> Result<Vec<u8>> {
        seal(KIND, self).map_err(Error::io(path))
    }

    /// The number of ranges of rows.
    pub(super) fn ranges(&self) -> usize {
        (self.fingerprint.rows as usize).div_ceil(self.range_rows)
    }

    /// The rows of a range.
    pub(super) fn rows(&self, range: u32) -> std::ops::Range<usize> {
        let first = range as usize * self.range_rows;
        first..(self.fingerprint.rows as usize).min(first + self.range_rows)
    }

    /// The builder of the plan's parameters.
    pub(super) fn builder(&self) -> Result<Builder> {
        let strategy: Strategy = self.parameter("index")?.parse()?;
        let parameters = self.parameters.iter().filter(|(name, _)| !OTHERS.contains(&name.as_str()));
        Builder::new(strategy).set_all(parameters)
    }

    fn parameter(&self, name: &str) -> Result<&str> {
        let value = self.parameters.get(name).map(String::as_str);
        value.ok_or_else(|| Error::argument("parameter", format_args!("no {name}"), "a plan with it"))
    }

    /// Components of an embedded row.
    pub(super) fn embedded_dim(&self) -> usize {
        let lifted = self.parameter("metric").is_ok_and(|metric| metric == Metric::InnerProduct.to_string());
        self.fingerprint.dim as usize + usize::from(lifted)
    }

    pub(super) fn embedding(&self, builder: &Builder) -> Embedding {
        let mean = self.mean.iter().map(|&bits| f32::from_bits(bits)).collect();
        Embedding::from_parts(builder.descent.metric, f64::from_bits(self.largest_square), mean)
    }

    /// Checks that `base` is the data set of the plan, by its fingerprint.
    pub(super) fn check_base(&self, base: &Vectors) -> Result<()> {
        if Fingerprint::compute(base)? == self.fingerprint {
            return Ok(());
        }
        let Fingerprint { rows, dim, element, .. } = self.fingerprint;
        let expected =
            format!("the {rows} x {dim} {element} of the plan; plan a changed data set in another folder");
        Err(Error::mismatch(base.describe(), "another data set, or other values", expected))
    }
}

impl Shared {
    fn pieces(&self) -> [NewPiece<'_>; 3] {
        let Self { centres, rounding, repeated } = self;
        [
            (CENTRES, bytemuck::cast_slice(centres.values())),
            (ROUNDING, bytemuck::cast_slice(&rounding.mean)),
            (REPEATED, bytemuck::cast_slice(repeated.words())),
        ]
    }

    fn crc(&self) -> u32 {
        let mut hasher = crc32fast::Hasher::new();
        self.pieces().iter().for_each(|(_, piece)| hasher.update(piece));
        hasher.update(&self.rounding.scale.to_le_bytes());
        hasher.finalize()
    }

    fn put(&self, store: &ObjectStore) -> Result<()> {
        let (scale, dim) = (self.rounding.scale.to_bits(), self.rounding.mean.len());
        store.put(PLAN_OBJECT, "", &SharedDescription { scale, dim }, &self.pieces())
    }

    /// Reads the object of `plan`.
    pub(super) fn read(plan: &Plan, store: &ObjectStore) -> Result<Self> {
        let damaged = || {
            let expected = "an intact object: delete it and plan again in this folder";
            Error::file(&store.path(PLAN_OBJECT), "damage", expected)
        };
        let object = store.open(PLAN_OBJECT)?.ok_or_else(damaged)?;
        let SharedDescription { scale, dim } = object.more().ok_or_else(damaged)?;
        let piece = |key| -> Result<Vec<u8>> { object.piece(key)?.ok_or_else(damaged) };
        let centres: Vec<f32> = numbers(&piece(CENTRES)?).ok_or_else(damaged)?;
        let rounding = RowRounding {
            mean: numbers(&piece(ROUNDING)?).ok_or_else(damaged)?,
            scale: f32::from_bits(scale),
        };
        let words: Vec<u32> = numbers(&piece(REPEATED)?).ok_or_else(damaged)?;
        let repeated = Repeated::read(&words, plan.fingerprint.rows as usize).map_err(|_| damaged())?;
        let is_finite = |values: &[f32]| values.iter().all(|x| x.is_finite());
        let sound = dim == plan.embedded_dim()
            && centres.len() == plan.clusters * dim
            && rounding.mean.len() == dim
            && is_finite(&centres)
            && is_finite(&rounding.mean)
            && rounding.scale.is_normal()
            && rounding.scale > 0.0;
        if !sound {
            return Err(damaged());
        }
        let shared = Self { centres: Centres::from_values(centres, dim), rounding, repeated };
        if shared.crc() == plan.content { Ok(shared) } else { Err(damaged()) }
    }
}

/// Checks the rows of a range.
pub(super) fn check_range(rows: usize) -> Result<()> {
    let sound = rows > 0 && rows.is_multiple_of(SUM_ROWS) && rows <= MAX_ROWS;
    let expected = format_args!("a multiple of {SUM_ROWS}");
    if sound { Ok(()) } else { Err(Error::argument("range_rows", rows, expected)) }
}

/// The kind of `device`: devices of a kind make the same bytes.
pub(super) fn device_kind(device: Device) -> Result<String> {
    let gpu = device.gpu()?;
    Ok(gpu.map_or_else(|| "cpu".to_owned(), |gpu| gpu.device_name().unwrap_or(gpu.name()).to_owned()))
}
