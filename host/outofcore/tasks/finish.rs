//! `assemble` and `finish`: the index.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::assign::Placed;
use super::context::{Context, Input, Outcome};
use super::id::{TaskId, TaskStage};
use super::store::unique;
use crate::atomic_file::AtomicFile;
use crate::outofcore::run::{Ending, Reached, RowRange, append_rows, are_rows, entry_points};
use crate::outofcore::store::CentralNode;
use crate::same_file::check_no_input;
use crate::{Error, Result, real_path, regular_file};

/// The only piece of `assemble`.
const ROWS: u32 = 0;

/// Bytes of the file that tell one index from another: its header has checksums of all sections.
const BEGINNING: usize = 4096;

/// The description of `finish`: the index, and numbers of its build.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FinishedIndex {
    /// Bytes of the file.
    pub bytes: u64,
    /// CRC-32 of the first page of the file.
    pub header: u32,
    /// Nodes that no path from the entry points reaches.
    pub unreachable: u64,
    /// Repeated rows.
    pub repeated: u64,
    /// Kinds of devices of `assign` and `build`. More than one give up equal bytes.
    pub devices: Vec<String>,
}

impl FinishedIndex {
    /// Whether the file at `path` is this index.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        beginning(path).is_ok_and(|(bytes, header)| (bytes, header) == (self.bytes, self.header))
    }
}

/// The length of a file, and the CRC-32 of its first page.
fn beginning(path: &Path) -> Result<(u64, u32)> {
    let file = regular_file::open(path)?;
    let read = || {
        let mut first = Vec::new();
        (&file).take(BEGINNING as u64).read_to_end(&mut first)?;
        Ok((file.metadata()?.len(), crc32fast::hash(&first)))
    };
    read().map_err(Error::io(path))
}

impl Context<'_> {
    /// Gathers the finished rows of a range of ids.
    pub(super) fn assemble(&self, range: u32) -> Outcome<()> {
        let ids = self.plan.rows(range);
        let mut rows = RowRange::new(ids, self.base.len(), self.builder.strategy.max_degree())?;
        for cluster in 0..self.plan.clusters {
            self.builder.descent.progress.check()?;
            let merged: Input<()> = self.store.input(TaskId::new(TaskStage::Merge, cluster))?;
            rows.add(&merged.piece(range)?);
        }
        let rows = rows.finish(&self.shared.repeated).ok_or_else(|| {
            // Each object is sound, so they do not belong together.
            let expected = "one row of each id: delete the folder and plan again";
            Error::file(self.store.folder(), format_args!("other rows in range {range}"), expected)
        })?;
        self.put(TaskId::new(TaskStage::Assemble, range as usize), (), &[(ROWS, bytemuck::cast_slice(&rows))])
    }

    /// Writes the index to `output`.
    pub(super) fn finish(&self, output: &Path) -> Outcome<()> {
        let Self { base, builder, embedding, plan, shared, device, .. } = *self;
        let (mut entries, mut central, mut lone) = (Vec::new(), CentralNode::NONE, Vec::new());
        let mut devices = self.store.input::<Placed>(TaskId::PLACE)?.more.devices;
        for cluster in 0..plan.clusters as u32 {
            let built = self.built(cluster)?;
            entries.extend(built.more.entry);
            central = central.nearer(built.more.central);
            lone.extend(built.more.lone);
            devices.push(built.object.device);
        }
        lone.sort_unstable();
        lone.dedup();
        let repeated = &shared.repeated;
        let ending = Ending { builder, base, plan: &plan.limits, repeated, embedding };
        let plan_hash = self.store.plan;
        // It may have become another name of the data set.
        check_no_input(output, base.path())?;
        let file = AtomicFile::create_as(output, |name| part_name(name, plan_hash, &unique()))?;
        let mut file = ending.create(file, entries.len())?;
        let stage = builder.descent.progress.stage("write", plan.ranges() as u64 + 1);
        let degree = builder.strategy.max_degree();
        for range in 0..plan.ranges() {
            let input: Input<()> = self.store.input(TaskId::new(TaskStage::Assemble, range))?;
            let rows: Vec<u32> = input.numbers(ROWS)?;
            let ids = plan.rows(range as u32);
            if rows.len() != ids.len() * degree
                || !are_rows(&rows, degree, ids.start, base.len(), &shared.repeated)
            {
                return Err(input.lost());
            }
            append_rows(&mut file, &rows, degree)?;
            stage.advance(1)?;
        }
        let reached = Reached { clusters: &entries, central: central.node };
        let entries = entry_points(builder, base, embedding, &shared.repeated, reached);
        let graph = file.rows()?;
        let layered = ending.layers(&graph, entries, device)?;
        let unreachable = ending.attach(&mut file, graph, &layered, &lone)?;
        let (bytes, header) = ending.commit(file, &layered, &[])?;
        stage.advance(1)?;
        devices.sort();
        devices.dedup();
        let repeated = shared.repeated.len() as u64;
        self.put(TaskId::FINISH, FinishedIndex { bytes, header, unreachable, repeated, devices }, &[])?;
        // Others that finish now find the object, and so do not miss the files removed here.
        remove_parts(output, plan_hash)?;
        Ok(self.store.clean()?)
    }
}

/// Bytes of a name above which its hash takes its place in the name of a part.
const LONG_NAME: usize = 150;

/// The temporary name of the index `name`: several processes may finish at once.
fn part_name(name: &OsStr, plan: u64, unique: &str) -> OsString {
    let mut name = name.to_string_lossy();
    // The longest names have no room for more.
    if name.len() > LONG_NAME {
        name = format!("{:08x}", crc32fast::hash(name.as_bytes())).into();
    }
    format!(".{name}.{plan:016x}.{unique}").into()
}

/// Removes the temporary files of stopped runs that were to become the index at `output`.
fn remove_parts(output: &Path, plan: u64) -> Result<()> {
    let output = real_path(output);
    let (Some(folder), Some(name)) = (output.parent(), output.file_name()) else { return Ok(()) };
    let stem = part_name(name, plan, "");
    for entry in fs::read_dir(folder).map_err(Error::io(folder))?.flatten() {
        if entry.file_name().as_encoded_bytes().starts_with(stem.as_encoded_bytes()) {
            // Another process may remove it too.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
