//! The file of repeated rows.

use serde::{Deserialize, Serialize};

use super::{Attempt, Bins, Damage, Fault, Log, Piece};
use crate::{Repeated, Result};

/// Bytes of a repeated row and the first row of its group.
const PAIR: usize = 8;

/// Bytes of the file's buffer.
const BUFFER: usize = 1 << 20;

/// Repeated rows on disk, each with the first row of its group.
pub(crate) struct RepeatedFile {
    bins: Bins,
    /// Rows of the base.
    rows: usize,
}

/// Pieces of the file of repeated rows.
#[derive(Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct RepeatedPieces(Vec<Piece>);

impl RepeatedPieces {
    /// Bytes of all pieces; saturates, since pieces are read from a file.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().fold(0, |bytes, piece| bytes.saturating_add(piece.bytes()))
    }

    /// The number of repeated rows.
    pub(crate) fn len(&self) -> u64 {
        self.bytes() / PAIR as u64
    }

    /// Whether each piece lies in the file and consists of whole pairs.
    pub(crate) fn is_sound(&self) -> bool {
        let bytes = self.bytes();
        self.0.iter().all(|piece| piece.is_sound(bytes, PAIR))
    }
}

impl RepeatedFile {
    /// Writes the `repeated` rows of a base of `rows` rows to an empty log.
    pub(crate) fn write(log: Log, repeated: &Repeated, rows: usize) -> Result<Self> {
        let mut bins = Bins::new(log, 1, BUFFER);
        bins.extend(0, bytemuck::cast_slice(repeated.words()), PAIR)?;
        bins.pieces()?;
        Ok(Self { bins, rows })
    }

    /// Opens the file of a base of `rows` rows.
    pub(crate) fn open(log: Log, pieces: RepeatedPieces, rows: usize) -> Self {
        Self { bins: Bins::open(log, vec![pieces.0], 0), rows }
    }

    /// The pieces of the file.
    pub(crate) fn pieces(&mut self) -> Result<RepeatedPieces> {
        Ok(RepeatedPieces(self.bins.pieces()?.concat()))
    }

    /// As [`Log::flushing`].
    pub(crate) fn flushing(&mut self) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        self.bins.flushing()
    }

    /// Reads the repeated rows. Fails with [`Damage::Repeated`] if they are damaged.
    pub(crate) fn read(&self) -> Attempt<Repeated> {
        let mut words: Vec<u32> = Vec::with_capacity((self.bins.bytes() / 4) as usize);
        let take = |piece: &[u8]| words.extend_from_slice(&bytemuck::pod_collect_to_vec::<u8, u32>(piece));
        let sound = self.bins.read(0, take)?;
        let repeated = Repeated::read(&words, self.rows).ok().filter(|_| sound);
        repeated.ok_or(Fault::Lost(Damage::Repeated))
    }
}
