//! Checks of an index: that it fits a data set, and that its graph is sound.

use std::path::Path;

use tagore_device::key::NO_ID;

use super::{Adjacency, Index, Layer};
use crate::memory::filled;
use crate::parallel::for_each_block;
use crate::vectors::spread_rows;
use crate::{Error, Fingerprint, Progress, Result, Vectors};

impl Index {
    /// Checks that this index was built over `base`.
    ///
    /// # Errors
    /// [`Error::Mismatch`] with the difference.
    pub fn check_base(&self, base: &Vectors) -> Result<()> {
        self.fingerprint.check(&Fingerprint::compute(base)?, &self.describe(), &base.describe())
    }

    /// Checks, once, that a search can follow every id.
    pub(crate) fn check_ids(&self, progress: &Progress) -> Result<()> {
        if self.checked.get().is_none() {
            let n = self.nodes as u32;
            let stage = progress.stage("check", self.nodes as u64);
            for_each_block(self.nodes, &stage, |mut nodes| {
                match nodes.find(|&node| self.neighbors(node).iter().any(|&id| id >= n)) {
                    None => Ok(()),
                    Some(node) => {
                        let (found, expected) =
                            (format!("an unknown id in row {node}"), format!("ids below {n}"));
                        Err(Error::mismatch(self.describe(), found, expected))
                    }
                }
            })?;
            self.check_no_nodes(progress)?;
            self.check_entries()?;
            self.checked.get_or_init(|| ());
        }
        Ok(())
    }

    /// Checks that no edge leads to a repeated row, which a search would return twice, or to one
    /// that was left out.
    fn check_no_nodes(&self, progress: &Progress) -> Result<()> {
        if self.absent.is_empty() {
            return Ok(());
        }
        let mut is_node = filled(true, self.nodes)?;
        self.repeated().pairs().for_each(|(row, _)| is_node[row as usize] = false);
        self.absent.left_out().for_each(|row| is_node[row as usize] = false);
        let stage = progress.stage("check", self.nodes as u64);
        for_each_block(self.nodes, &stage, |mut nodes| {
            match nodes.find(|&node| self.neighbors(node).iter().any(|&id| !is_node[id as usize])) {
                None => Ok(()),
                Some(node) => {
                    let found = format!(
                        "a row that repeats another or was left out among the neighbours of node {node}"
                    );
                    Err(Error::mismatch(self.describe(), found, "nodes of the graph"))
                }
            }
        })
    }

    /// Checks that there is at least one entry point and at most one per node.
    pub(super) fn check_entry_count(&self) -> Result<()> {
        let (entries, nodes) = (self.entries.len(), self.nodes);
        if entries == 0 && nodes > 0 {
            let expected = "at least one: build or export the index again";
            return Err(Error::mismatch(self.describe(), "no entry points", expected));
        }
        if entries > nodes {
            let expected = format!("at most {nodes}, the number of nodes");
            return Err(Error::mismatch(self.describe(), format_args!("{entries} entry points"), expected));
        }
        Ok(())
    }

    pub(super) fn check_entries(&self) -> Result<()> {
        self.check_entry_count()?;
        match self.entries.iter().find(|&&entry| entry as usize >= self.nodes) {
            Some(entry) => {
                let expected = format!("ids below {}", self.nodes);
                Err(Error::mismatch(self.describe(), format_args!("entry point {entry}"), expected))
            }
            None if self
                .entries
                .iter()
                .chain(&self.first_nodes())
                .any(|&id| self.repeated().contains(id)) =>
            {
                let found = "a repeated row as an entry point";
                Err(Error::mismatch(self.describe(), found, "the first row of its group"))
            }
            None if self.entries.iter().chain(&self.first_nodes()).any(|&id| self.is_left_out(id)) => {
                let found = "an entry point that was left out of the build";
                Err(Error::mismatch(self.describe(), found, "a node of the graph"))
            }
            None => match &self.spots {
                Some(spots) if !spots.is_sound(|node| (node as usize) < self.nodes) => {
                    let found = "unsorted dense spots, or an unknown id in one";
                    Err(Error::mismatch(self.describe(), found, "ascending ids of nodes"))
                }
                _ => Layer::check(&self.layers, self.nodes, &self.entries, &self.describe()),
            },
        }
    }

    /// Reads and checks the whole index: the checksums of a file, and that every row holds distinct
    /// ids of other nodes, padded with `u32::MAX`.
    ///
    /// # Errors
    /// For the first fault, or if the work is cancelled.
    pub fn verify(&self, progress: &Progress) -> Result<()> {
        if let Adjacency::File(file) = &self.adjacency {
            file.check(self.path.as_deref().unwrap_or(Path::new("index")), progress)?;
        }
        self.check_graph(progress)
    }

    pub(super) fn check_graph(&self, progress: &Progress) -> Result<()> {
        self.check_ids(progress)?;
        let stage = progress.stage("check", self.nodes as u64);
        for_each_block(self.nodes, &stage, |mut nodes| {
            self.check_rows(nodes.find(|&node| !self.is_good(node)))
        })
    }

    /// Checks the entry points and 1,024 evenly spread rows: constant time for any size.
    ///
    /// # Errors
    /// For the first fault.
    pub fn spot_check(&self) -> Result<()> {
        self.check_entries()?;
        let known = |node: usize| self.neighbors(node).iter().all(|&id| (id as usize) < self.nodes);
        let first_bad = || spread_rows(self.nodes).find(|&node| !self.is_good(node) || !known(node));
        self.check_rows(match &self.adjacency {
            Adjacency::Owned { .. } => first_bad(),
            Adjacency::File(file) => file.far_apart(first_bad),
        })
    }

    /// Fails for a `bad` row.
    fn check_rows(&self, bad: Option<usize>) -> Result<()> {
        match bad {
            None => Ok(()),
            Some(node) => Err(Error::mismatch(
                self.describe(),
                format_args!("a wrong row {node}"),
                "distinct ids of other nodes, then padding",
            )),
        }
    }

    /// Whether the row of `node` holds distinct ids of other nodes, as many as its degree.
    fn is_good(&self, node: usize) -> bool {
        let (degrees, neighbors) = self.parts();
        let row = &neighbors[node * self.max_degree..][..self.max_degree];
        let degree = degrees[node] as usize;
        if degree > self.max_degree || row[degree..].iter().any(|&id| id != NO_ID) {
            return false;
        }
        let mut ids = row[..degree].to_vec();
        ids.sort_unstable();
        ids.windows(2).all(|pair| pair[0] != pair[1]) && !ids.contains(&(node as u32))
    }
}
