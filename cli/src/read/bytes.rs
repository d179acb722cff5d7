//! Little-endian numbers in a slice, one after another.

/// The rest of a slice.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    pub(super) fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn int(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn long(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// A number of at most 8 bytes.
    pub(super) fn number(&mut self, length: usize) -> Option<u64> {
        let mut wide = [0; 8];
        wide.get_mut(..length)?.copy_from_slice(self.take(length)?);
        Some(u64::from_le_bytes(wide))
    }
}

/// Numbers of this size, whose first bytes came first, then the second ones, and so on.
pub(super) fn unshuffled(bytes: &[u8], size: usize) -> Vec<u8> {
    let count = bytes.len() / size;
    let mut numbers = bytes.to_vec();
    for (i, number) in numbers.chunks_exact_mut(size).enumerate() {
        for (k, byte) in number.iter_mut().enumerate() {
            *byte = bytes[k * count + i];
        }
    }
    numbers
}
