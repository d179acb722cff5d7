//! A service that is searched while rows come and go: one shared [`LiveIndex`] behind HTTP, and
//! clients that load it.
//!
//! ```text
//! cargo run --release -- [rows] [requests]        # 100,000 rows and 20,000 requests unless given
//! curl -d '{"vector": [0.1, ...], "k": 10}' -H 'content-type: application/json' ADDRESS/search
//! curl -d '{"rows": [[7, [0.1, ...]]]}' -H 'content-type: application/json' ADDRESS/insert
//! curl -d '{"ids": [7]}' -H 'content-type: application/json' ADDRESS/remove
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tagore::{Builder, Ids, LiveIndex, Progress, Search, Strategy, Synth, Vectors};
use tokio::net::{TcpListener, TcpStream};

const DIM: usize = 64;

/// Searches at the same time, each on a connection of its own.
const CONCURRENT: usize = 200;

/// Rows that come, and as many that go, with one request.
const BATCH: usize = 50;

type Failure = Box<dyn Error + Send + Sync>;

/// A query as JSON.
#[derive(Serialize, Deserialize)]
struct Query {
    vector: Vec<f32>,
    k: usize,
    beam: Option<usize>,
    radius: Option<f32>,
}

/// A row found, as JSON.
#[derive(Serialize, Deserialize)]
struct Found {
    id: u64,
    distance: f32,
}

/// Rows to insert, as JSON, each with its id.
#[derive(Serialize, Deserialize)]
struct Rows {
    rows: Vec<(u64, Vec<f32>)>,
}

/// Rows to remove, as JSON.
#[derive(Serialize, Deserialize)]
struct Gone {
    ids: Vec<u64>,
}

type Answer<T> = Result<Json<T>, (StatusCode, String)>;

fn refused(error: impl ToString) -> (StatusCode, String) {
    (StatusCode::BAD_REQUEST, error.to_string())
}

/// Answers a query. A search takes less time than handing it to another thread would save, so it
/// runs where the request arrives. Errors say what was wrong with the query.
async fn search(State(index): State<Arc<LiveIndex>>, Json(query): Json<Query>) -> Answer<Vec<Found>> {
    let mut search = Search::new(query.k);
    if let Some(beam) = query.beam {
        search = search.beam(beam);
    }
    if let Some(radius) = query.radius {
        search = search.radius(radius);
    }
    let found = index.snapshot().search_one(&query.vector, search).map_err(refused)?;
    Ok(Json(found.into_iter().map(|row| Found { id: row.id, distance: row.distance }).collect()))
}

/// Runs a change, which waits for the disk: not on the threads that answer.
async fn change<T: Send + 'static>(
    index: Arc<LiveIndex>,
    change: impl FnOnce(&LiveIndex) -> tagore::Result<T> + Send + 'static,
) -> Answer<T> {
    let changed = tokio::task::spawn_blocking(move || change(&index)).await;
    changed.map_err(refused)?.map(Json).map_err(refused)
}

/// Inserts rows; one whose id is there replaces that row. Returns once they are on disk.
async fn insert(State(index): State<Arc<LiveIndex>>, Json(rows): Json<Rows>) -> Answer<()> {
    let (ids, rows): (Vec<u64>, Vec<Vec<f32>>) = rows.rows.into_iter().unzip();
    let rows = Vectors::from_rows(rows).map_err(refused)?;
    change(index, move |index| index.insert(&ids, &rows, &Progress::silent())).await
}

/// Removes rows, and returns how many there were.
async fn remove(State(index): State<Arc<LiveIndex>>, Json(gone): Json<Gone>) -> Answer<usize> {
    change(index, move |index| index.remove(&gone.ids, &Progress::silent())).await
}

/// Brings the graph up to date now and then, so that no change has to.
async fn consolidate(index: Arc<LiveIndex>, done: Arc<AtomicBool>) -> Result<(), Failure> {
    while !done.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let index = Arc::clone(&index);
        tokio::task::spawn_blocking(move || index.consolidate(&Progress::silent())).await??;
    }
    Ok(())
}

/// A connection to the service.
struct Client {
    sender: http1::SendRequest<Full<Bytes>>,
    address: SocketAddr,
}

impl Client {
    async fn new(address: SocketAddr) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// The answer to a request.
    async fn send(&mut self, path: &str, body: &impl Serialize) -> Result<Bytes, Failure> {
        let request = Request::post(path)
            .header("host", self.address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(serde_json::to_vec(body)?)))?;
        let response = self.sender.send_request(request).await?;
        let (status, body) = (response.status(), response.into_body().collect().await?.to_bytes());
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(body)
    }
}

/// Sends every [`CONCURRENT`]-th query from number `first` on, one after another; returns the time
/// of each.
async fn search_all(
    address: SocketAddr,
    queries: Arc<Vectors>,
    first: usize,
) -> Result<Vec<Duration>, Failure> {
    let mut client = Client::new(address).await?;
    let mut times = Vec::new();
    for query in (first..queries.len()).step_by(CONCURRENT) {
        let vector = queries.row_to_f32(query)?.into_owned();
        let query = Query { vector, k: 10, beam: Some(64), radius: None };
        let began = Instant::now();
        let body = client.send("/search", &query).await?;
        times.push(began.elapsed());
        let found: Vec<Found> = serde_json::from_slice(&body)?;
        if found.len() != 10 {
            return Err(format!("found {} rows, expected 10", found.len()).into());
        }
    }
    Ok(times)
}

/// Lets new rows come, and the oldest ones go, until the searches are done. Returns the rows that
/// came.
async fn change_all(address: SocketAddr, rows: Arc<Vectors>, done: Arc<AtomicBool>) -> Result<u64, Failure> {
    let mut client = Client::new(address).await?;
    let (held, mut next) = (rows.len() as u64, 0);
    while !done.load(Ordering::Relaxed) {
        let ids = next..next + BATCH as u64;
        let row = |id: u64| Ok((held + id, rows.row_to_f32((id % held) as usize)?.into_owned()));
        client.send("/insert", &Rows { rows: ids.clone().map(row).collect::<tagore::Result<_>>()? }).await?;
        client.send("/remove", &Gone { ids: ids.collect() }).await?;
        next += BATCH as u64;
    }
    Ok(next)
}

/// Bytes of this process in memory.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(1024 * line.split_whitespace().next()?.parse::<u64>().ok()?)
}

fn megabytes(bytes: Option<u64>) -> String {
    bytes.map_or("unknown".to_owned(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6))
}

/// Argument `place` of the command line, a positive number.
fn argument(place: usize, default: usize) -> Result<usize, Failure> {
    let Some(text) = std::env::args().nth(place) else { return Ok(default) };
    let number = text.parse().ok().filter(|&number| number > 0);
    number
        .ok_or_else(|| format!("found {text}, expected a positive number: service [rows] [requests]").into())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (rows, requests) = (argument(1, 100_000)?, argument(2, 20_000)?);
    // Else glibc's allocator keeps what the build has freed (docs/plan.md).
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: a setting of the allocator, which may change at any time.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 2 << 20);
    }
    let synth = Synth::new(rows, DIM, 1)?;
    let (base, queries) = (Arc::new(synth.base()), Arc::new(synth.queries(requests)));
    let began = Instant::now();
    let index = Builder::new(Strategy::cagra()).build(&base)?;
    println!("index of {rows} x {DIM} built in {:.1} s", began.elapsed().as_secs_f64());

    let folder = std::env::temp_dir().join(format!("service-{}", std::process::id()));
    let ids = Ids::new((0..rows as u64).collect())?;
    let live = Arc::new(LiveIndex::create_from(&folder, &index, &base, &ids)?);
    live.set_automatic(false);
    drop(index);
    let before = resident();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = Router::new()
        .route("/search", post(search))
        .route("/insert", post(insert))
        .route("/remove", post(remove))
        .with_state(Arc::clone(&live));
    tokio::spawn(async move { axum::serve(listener, service).await });
    println!("http://{address}/search");

    let (began, done) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let changes = tokio::spawn(change_all(address, Arc::clone(&base), Arc::clone(&done)));
    let graphs = tokio::spawn(consolidate(Arc::clone(&live), Arc::clone(&done)));
    let clients: Vec<_> =
        (0..CONCURRENT).map(|first| tokio::spawn(search_all(address, Arc::clone(&queries), first))).collect();
    let mut times = Vec::with_capacity(requests);
    for client in clients {
        times.extend(client.await??);
    }
    let seconds = began.elapsed().as_secs_f64();
    done.store(true, Ordering::Relaxed);
    let came = changes.await??;
    graphs.await??;
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{} searches, {CONCURRENT} at a time: {:.0} per second, p50 {:.2} ms, p99 {:.2} ms; {came} rows came and went",
        times.len(),
        times.len() as f64 / seconds,
        at(0.5),
        at(0.99)
    );
    println!(
        "{} rows; memory: {} at first, {} at the end; peak, of the build, {}",
        live.len(),
        megabytes(before),
        megabytes(resident()),
        megabytes(tagore::peak_host_bytes())
    );
    drop(live);
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
