//! A search service: one shared [`Searcher`] behind HTTP, and a client that loads it.
//!
//! ```text
//! cargo run --release -- [rows] [requests]        # 100,000 rows and 20,000 requests unless given
//! curl -d '{"vector": [0.1, ...], "k": 10}' -H 'content-type: application/json' ADDRESS/search
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
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
use tagore::{Builder, Progress, Search, Searcher, Strategy, Synth, Vectors};
use tokio::net::{TcpListener, TcpStream};

const DIM: usize = 64;

/// Requests at the same time, each on a connection of its own.
const CONCURRENT: usize = 200;

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
    id: u32,
    distance: f32,
}

/// Answers a query. A search takes less time than handing it to another thread would save, so it
/// runs where the request arrives. Errors say what was wrong with the query.
async fn search(
    State(searcher): State<Searcher>,
    Json(query): Json<Query>,
) -> Result<Json<Vec<Found>>, (StatusCode, String)> {
    let mut search = Search::new(query.k);
    if let Some(beam) = query.beam {
        search = search.beam(beam);
    }
    if let Some(radius) = query.radius {
        search = search.radius(radius);
    }
    let found = searcher.search_one(&query.vector, search);
    let found = found.map_err(|error| (StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(Json(found.into_iter().map(|row| Found { id: row.id, distance: row.distance }).collect()))
}

/// Sends every [`CONCURRENT`]-th query from number `first` on, one after another; returns the time
/// of each.
async fn send(address: SocketAddr, queries: Arc<Vectors>, first: usize) -> Result<Vec<Duration>, Failure> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let mut times = Vec::new();
    for query in (first..queries.len()).step_by(CONCURRENT) {
        let vector = queries.row_to_f32(query)?.into_owned();
        let body = serde_json::to_vec(&Query { vector, k: 10, beam: Some(64), radius: None })?;
        let request = Request::post("/search")
            .header("host", address.to_string())
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))?;
        let began = Instant::now();
        let response = sender.send_request(request).await?;
        let (status, body) = (response.status(), response.into_body().collect().await?.to_bytes());
        times.push(began.elapsed());
        let found: Vec<Found> = serde_json::from_slice(&body).unwrap_or_default();
        if status != StatusCode::OK || found.len() != 10 {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
    }
    Ok(times)
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

    let bytes = (base.len() * DIM * 4) as u64;
    let before = resident();
    let searcher = Searcher::new(index, base, &Progress::silent())?;
    let after = resident();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let service = Router::new().route("/search", post(search)).with_state(searcher);
    tokio::spawn(async move { axum::serve(listener, service).await });
    println!("http://{address}/search");

    let began = Instant::now();
    let clients: Vec<_> =
        (0..CONCURRENT).map(|first| tokio::spawn(send(address, Arc::clone(&queries), first))).collect();
    let mut times = Vec::with_capacity(requests);
    for client in clients {
        times.extend(client.await??);
    }
    let seconds = began.elapsed().as_secs_f64();
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1e3;
    println!(
        "{} requests, {CONCURRENT} at a time: {:.0} per second, p50 {:.2} ms, p99 {:.2} ms",
        times.len(),
        times.len() as f64 / seconds,
        at(0.5),
        at(0.99)
    );
    println!(
        "memory: base {}; in all {} before the searcher, {} with it, {} at the end; peak, of the build, {}",
        megabytes(Some(bytes)),
        megabytes(before),
        megabytes(after),
        megabytes(resident()),
        megabytes(tagore::peak_host_bytes())
    );
    Ok(())
}
