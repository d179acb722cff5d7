//! Rows of an index for a caller's store.

use super::IndexFormat;
use crate::{Error, Index, Progress, Result, StoreError};

/// A store that takes the rows of a graph, such as a database.
pub trait RowSink {
    /// Takes the entry points, where searches begin. Called once, before all rows.
    ///
    /// # Errors
    /// Any error of the store; it ends the work with [`Error::Store`], which carries it.
    fn entries(&mut self, entries: &[u32]) -> Result<(), StoreError>;

    /// Takes the neighbours of `node`, in the order of the index. Called for nodes 0 to n − 1, in
    /// this order.
    ///
    /// # Errors
    /// As [`entries`](Self::entries).
    fn row(&mut self, node: u32, neighbors: &[u32]) -> Result<(), StoreError>;
}

impl Index {
    /// Writes the entry points and all rows to `sink`, after [`verify`](Self::verify).
    ///
    /// Rows are those of an export to `csr` or `ibin`: a reader needs to know nothing but the rows
    /// and the entry points. Rows of a group of equal rows ([`repeated`](Self::repeated)) are
    /// linked to one another. [`layers`](Self::layers) are not written: the sink may take them from
    /// the index, or [`Builder::layers`](crate::Builder::layers) leaves them out.
    ///
    /// # Errors
    /// If the index is damaged, the sink fails ([`Error::Store`]), or the work is cancelled. The
    /// sink then has a part of the rows: a transaction of the store makes that nothing.
    pub fn write_rows<S: RowSink + ?Sized>(&self, sink: &mut S, progress: &Progress) -> Result<()> {
        self.verify(progress)?;
        sink.entries(self.entries()).map_err(|error| Error::store("sink", 0, error))?;
        let export = self.export(IndexFormat::Csr).progress(progress.clone());
        export.find_groups()?;
        export.for_each_node(|node| {
            let taken = sink.row(node as u32, &export.row(node));
            taken.map_err(|error| Error::store("sink", node, error))
        })
    }
}
