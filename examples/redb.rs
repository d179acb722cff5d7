//! Builds a graph index inside a database and searches it there: `cargo run --release --example
//! redb`.
//!
//! The vectors lie in redb, in chunks. The build reads them through a `Source`, and writes the rows
//! of the graph back through a `RowSink`, in one transaction. No other file is written. A search
//! then reads rows and vectors from the database, as it needs them.
#![expect(clippy::print_stdout, reason = "an example shows its results")]

use std::path::Path;
use std::time::Instant;

use redb::{Database, ReadOnlyTable, ReadableDatabase, ReadableTableMetadata, Table, TableDefinition};
use tagore::{
    Builder, Metric, Progress, RowSink, Source, StoreError, Strategy, Synth, Vectors, ground_truth,
};

/// Little-endian f32 values of `CHUNK` rows each.
const VECTORS: TableDefinition<u32, &[u8]> = TableDefinition::new("vectors");
/// Neighbours of each node, as little-endian u32.
const ROWS: TableDefinition<u32, &[u8]> = TableDefinition::new("rows");
/// Entry points, under the key 0.
const ENTRIES: TableDefinition<u32, &[u8]> = TableDefinition::new("entries");

const ROWS_OF_VECTORS: usize = 5_000;
const DIM: usize = 32;
const CHUNK: usize = 100;
const ROW_BYTES: usize = DIM * size_of::<f32>();

/// Vectors in a database.
struct Stored(ReadOnlyTable<u32, &'static [u8]>);

impl Stored {
    /// The values of row `row`.
    fn row(&self, row: u32) -> Result<Vec<f32>, StoreError> {
        let mut values = vec![0.0; DIM];
        self.read(row as usize, &mut values)?;
        Ok(values)
    }

    /// Copies rows from `first` until `values` is full. Returns the number of values copied from
    /// the chunk of `first`.
    fn read(&self, first: usize, values: &mut [f32]) -> Result<usize, StoreError> {
        let chunk = self.0.get((first / CHUNK) as u32)?.ok_or("a chunk is missing")?;
        let bytes = &chunk.value()[first % CHUNK * ROW_BYTES..];
        let (words, _) = bytes.as_chunks();
        values.iter_mut().zip(words).for_each(|(value, &word)| *value = f32::from_le_bytes(word));
        Ok(values.len().min(words.len()))
    }
}

impl Source for Stored {
    type Value = f32;

    fn rows(&self) -> usize {
        ROWS_OF_VECTORS
    }

    fn dim(&self) -> usize {
        DIM
    }

    fn fill(&mut self, first: usize, rows: &mut [f32]) -> Result<(), StoreError> {
        let mut done = 0;
        while done < rows.len() {
            done += self.read(first + done / DIM, &mut rows[done..])?;
        }
        Ok(())
    }
}

/// Tables that take a graph.
struct GraphTables<'t> {
    rows: Table<'t, u32, &'static [u8]>,
    entries: Table<'t, u32, &'static [u8]>,
}

impl RowSink for GraphTables<'_> {
    fn entries(&mut self, entries: &[u32]) -> Result<(), StoreError> {
        self.entries.insert(0, &bytes(entries)[..])?;
        Ok(())
    }

    fn row(&mut self, node: u32, neighbors: &[u32]) -> Result<(), StoreError> {
        self.rows.insert(node, &bytes(neighbors)[..])?;
        Ok(())
    }
}

fn bytes(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn ids(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

/// An open graph in a database.
struct Graph {
    vectors: Stored,
    rows: ReadOnlyTable<u32, &'static [u8]>,
    entries: Vec<u32>,
}

impl Graph {
    fn open(database: &Database) -> Result<Self, StoreError> {
        let transaction = database.begin_read()?;
        let entries = transaction.open_table(ENTRIES)?.get(0)?.ok_or("no entry points")?;
        let (vectors, rows) = (transaction.open_table(VECTORS)?, transaction.open_table(ROWS)?);
        Ok(Self { vectors: Stored(vectors), rows, entries: ids(entries.value()).collect() })
    }

    /// Beam search: the rows nearest to `query` in squared L2 distance, nearest first.
    fn search(&self, query: &[f32], beam: usize) -> Result<Vec<u32>, StoreError> {
        // Nodes with their distances, nearest first, and whether their neighbours were visited.
        let mut found: Vec<(f32, u32, bool)> = Vec::new();
        let mut seen = vec![false; ROWS_OF_VECTORS];
        let mut next = self.entries.clone();
        loop {
            for node in next {
                if !std::mem::replace(&mut seen[node as usize], true) {
                    let row = self.vectors.row(node)?;
                    let distance = query.iter().zip(&row).map(|(a, b)| (a - b) * (a - b)).sum();
                    let place = found.partition_point(|known| known.0 < distance);
                    found.insert(place, (distance, node, false));
                }
            }
            found.truncate(beam);
            let Some(nearest) = found.iter_mut().find(|known| !known.2) else { break };
            nearest.2 = true;
            let row = self.rows.get(nearest.1)?.ok_or("a row is missing")?;
            next = ids(row.value()).collect();
        }
        Ok(found.into_iter().map(|(_, node, _)| node).collect())
    }
}

/// Fills the database with vectors, as an application would.
fn insert(database: &Database, base: &Vectors) -> Result<(), StoreError> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(VECTORS)?;
        let values = base.to_f32()?;
        for (number, chunk) in (0..).zip(values.chunks(CHUNK * DIM)) {
            let bytes: Vec<u8> = chunk.iter().flat_map(|value| value.to_le_bytes()).collect();
            table.insert(number, &bytes[..])?;
        }
    }
    Ok(transaction.commit()?)
}

/// Builds the graph of the vectors of the database, into the database.
fn build(database: &Database) -> Result<(), StoreError> {
    let progress = Progress::silent();
    let began = Instant::now();
    let mut stored = Stored(database.begin_read()?.open_table(VECTORS)?);
    // The one copy of the vectors, in memory; `Vectors::spooled` for more than memory holds.
    let base = Vectors::from_source(&mut stored, &progress)?;
    println!("read {} x {} from redb in {:.2?}", base.len(), base.dim(), began.elapsed());

    let began = Instant::now();
    let index = Builder::new(Strategy::nsg()).layers(false).build(&base)?;
    println!("built {}, mean degree {:.1}, in {:.2?}", index.kind(), index.mean_degree(), began.elapsed());

    let began = Instant::now();
    let transaction = database.begin_write()?;
    {
        let (rows, entries) = (transaction.open_table(ROWS)?, transaction.open_table(ENTRIES)?);
        let mut tables = GraphTables { rows, entries };
        index.write_rows(&mut tables, &progress)?;
        println!("wrote {} rows to redb in {:.2?}", tables.rows.len()?, began.elapsed());
    }
    Ok(transaction.commit()?)
}

fn run(path: &Path) -> Result<f64, StoreError> {
    let synth = Synth::new(ROWS_OF_VECTORS, DIM, 7)?;
    let (base, queries) = (synth.base(), synth.queries(100));
    let database = Database::create(path)?;
    insert(&database, &base)?;
    build(&database)?;

    let graph = Graph::open(&database)?;
    let truth = ground_truth(&base, &queries, Metric::L2, 10, &Progress::silent())?;
    let (began, mut hits) = (Instant::now(), 0);
    for query in 0..queries.len() {
        let found = graph.search(&queries.row_to_f32(query)?, 50)?;
        hits += found[..10].iter().filter(|id| truth.ids(query).contains(id)).count();
    }
    let recall = hits as f64 / (10 * queries.len()) as f64;
    let each = began.elapsed() / queries.len() as u32;
    println!("searched in redb: recall@10 {recall:.4} at beam 50, {each:.2?} per query");
    Ok(recall)
}

fn main() -> Result<(), StoreError> {
    let folder = tempfile::tempdir()?;
    run(&folder.path().join("vectors.redb"))?;
    let files = std::fs::read_dir(folder.path())?.count();
    println!("files on disk: {files}, the database");
    Ok(())
}

#[test]
fn an_index_in_the_database_finds_the_neighbours_and_leaves_no_other_file() -> Result<(), StoreError> {
    let folder = tempfile::tempdir()?;
    let recall = run(&folder.path().join("vectors.redb"))?;
    assert!(recall > 0.95, "{recall}");
    assert_eq!(std::fs::read_dir(folder.path())?.count(), 1);
    Ok(())
}
