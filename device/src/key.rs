//! Packed neighbours: order-preserving bits of the distance above the id, in one integer.
//!
//! Minimum, sort and merge compare integers. Ties of the distance are broken by the id, in the same
//! way on every run and every backend.

/// A neighbour: `ordered(distance) << 32 | id`. The top bit of the id is [`UNVISITED`].
pub type Key = u64;

/// Flag in bit 31 of a key: not yet sampled (phase 1) or expanded (phase 2).
pub const UNVISITED: Key = 1 << 31;

/// The largest number of nodes: their ids leave bit 31 free.
pub const MAX_NODES: u64 = 1 << 31;

/// The id of no row: pads rows of ids, and marks empty slots.
pub const NO_ID: u32 = u32::MAX;

/// An empty slot; greater than the key of any neighbour.
pub const NONE: Key = u64::MAX;

/// The bits of `distance` as an integer with the order of distances.
#[inline(always)]
pub const fn ordered(distance: f32) -> u32 {
    let bits = distance.to_bits();
    bits ^ (((bits as i32 >> 31) as u32) | 0x8000_0000)
}

/// The inverse of [`ordered`].
#[inline(always)]
pub const fn from_ordered(bits: u32) -> f32 {
    let flip = if bits & 0x8000_0000 != 0 { 0x8000_0000 } else { u32::MAX };
    f32::from_bits(bits ^ flip)
}

/// The unflagged key of the neighbour `id` at `distance`.
#[inline(always)]
pub const fn pack(distance: f32, id: u32) -> Key {
    ((ordered(distance) as u64) << 32) | id as u64
}

/// The id of a key, without its flag.
#[inline(always)]
pub const fn id(key: Key) -> u32 {
    (key as u32) & 0x7fff_ffff
}

/// The distance of a key.
#[inline(always)]
pub const fn distance(key: Key) -> f32 {
    from_ordered((key >> 32) as u32)
}

/// The key without its flag, as comparisons take it.
#[inline(always)]
pub const fn plain(key: Key) -> Key {
    key & !UNVISITED
}

/// Whether the key carries [`UNVISITED`].
#[inline(always)]
pub const fn is_unvisited(key: Key) -> bool {
    key & UNVISITED != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_distances_and_then_by_id() {
        let distances = [f32::NEG_INFINITY, -1e30, -1.5, -1e-40, 0.0, 1e-40, 0.5, 1.0, 1e30, f32::INFINITY];
        for pair in distances.windows(2) {
            assert!(pack(pair[0], 7) < pack(pair[1], 3), "{pair:?}");
        }
        for d in distances {
            assert!(pack(d, 3) < pack(d, 4));
            assert_eq!(distance(pack(d, 9)), d);
            assert_eq!(id(pack(d, 0x7fff_fffe) | UNVISITED), 0x7fff_fffe);
            assert!(pack(d, 1) < NONE);
        }
    }

    #[test]
    fn the_flag_does_not_touch_distance_or_id() {
        let key = pack(2.25, 12345);
        assert!(!is_unvisited(key) && is_unvisited(key | UNVISITED));
        assert_eq!(plain(key | UNVISITED), key);
        assert_eq!(distance(key | UNVISITED), 2.25);
    }
}
