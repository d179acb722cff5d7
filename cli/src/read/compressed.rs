//! Files compressed by gzip or Zstandard.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use tagore::{Error, Result};

use super::copy::{PIECE, copy_bytes};

/// The widest window of a frame, which memory holds: that of `zstd --long`.
const WINDOW: u64 = 128 << 20;

/// Copies the content of a compressed file to a file with this extension.
///
/// # Errors
/// If the file is damaged, its content is longer than its header declares, or the copy cannot be
/// written.
pub(super) fn copy(path: &Path, is_gzip: bool, extension: &str) -> Result<PathBuf> {
    let file = File::open(path).map_err(|source| Error::Io { path: path.to_owned(), source })?;
    let file = BufReader::with_capacity(PIECE, file);
    let mut content: Box<dyn Read> =
        if is_gzip { Box::new(MultiGzDecoder::new(file)) } else { Box::new(Frames::new(file)) };
    copy_bytes(&mut *content, path, extension)
}

/// The content of all frames of a Zstandard file, one after another.
pub(super) struct Frames<R: BufRead> {
    file: R,
    decoder: FrameDecoder,
    /// Whether a frame was begun.
    is_open: bool,
}

impl<R: BufRead> Frames<R> {
    pub(super) fn new(file: R) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(WINDOW);
        Self { file, decoder, is_open: false }
    }

    /// Begins the next frame. False at the end of the file.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.file.fill_buf()?.is_empty() {
            match self.decoder.init(&mut self.file) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    io::copy(&mut self.file.by_ref().take(length.into()), &mut io::sink())?;
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for Frames<R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if to.is_empty() {
            return Ok(0);
        }
        loop {
            self.is_open = self.is_open || self.begin()?;
            if !self.is_open {
                return Ok(0);
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let blocks = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.file, blocks).map_err(io::Error::other)?;
            }
            let read = self.decoder.read(to)?;
            if read > 0 {
                return Ok(read);
            }
            let stated = self.decoder.get_checksum_from_data();
            if stated.is_some() && stated != self.decoder.get_calculated_checksum() {
                return Err(io::Error::other("another checksum"));
            }
            self.is_open = false;
        }
    }
}
