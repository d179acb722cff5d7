//! Places that any number of threads write to without locks, and whose result does not depend on who
//! comes first: a value goes to the slot that its hash names, and a slot keeps the smallest.

/// The slot, of `2^bits`, for `id`. Another `draw` mixes ids otherwise, so that two that met in a slot part.
#[inline(always)]
pub const fn slot(id: u32, draw: u32, bits: u32) -> u32 {
    (id ^ draw).wrapping_mul(0x85eb_ca6b) >> (32 - bits)
}

/// The two slots, of `2^bits`, at most 12, for `id`, which may be one: a value that is put into both is lost only if
/// a smaller one meets it in each.
#[inline(always)]
pub const fn two_slots(id: u32, draw: u32, bits: u32) -> (u32, u32) {
    let mut mixed = (id ^ draw).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae35);
    (mixed >> (32 - bits), mixed >> (20 - bits) & ((1 << bits) - 1))
}

const FACTOR: u32 = 0x9e37_79b1;

/// `1 / FACTOR` modulo 2^32.
const INVERSE: u32 = {
    // Newton's iteration doubles the number of bits that are right.
    let mut inverse = FACTOR;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// The rank of `id` among all ids in an order that `draw` mixes. The last rank, that of one id in 2^32, is
/// also that of an empty slot: such an id is not found there.
#[inline(always)]
pub const fn scramble(id: u32, draw: u32) -> u32 {
    let mixed = (id ^ draw).wrapping_mul(FACTOR);
    mixed ^ (mixed >> 16)
}

/// The id of a rank of [`scramble`].
#[inline(always)]
pub const fn unscramble(rank: u32, draw: u32) -> u32 {
    (rank ^ (rank >> 16)).wrapping_mul(INVERSE) ^ draw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_undone() {
        for draw in [0, 1, 0xdead_beef] {
            for id in (0..1000).chain([0x7fff_ffff, u32::MAX]) {
                assert_eq!(unscramble(scramble(id, draw), draw), id);
            }
        }
    }

    #[test]
    fn those_that_meet_in_one_slot_part_in_the_other() {
        let (mut meet, mut meet_twice) = (0, 0);
        let slots = |id| two_slots(id, 77, 7);
        for a in 0..2000 {
            for b in a + 1..2000 {
                meet += u32::from(slots(a).0 == slots(b).0);
                meet_twice += u32::from(slots(a) == slots(b));
            }
        }
        // Of two million pairs one in 128, and of those again one in 128.
        assert!((14_000..17_500).contains(&meet) && meet_twice < 250, "{meet} {meet_twice}");
    }

    #[test]
    fn slots_are_used_alike() {
        for draw in [0, 12345, 0xffff_0000] {
            let mut counts = [0; 64];
            (0..6400).for_each(|id| counts[slot(id, draw, 6) as usize] += 1);
            assert!(counts.iter().all(|count| (50..=150).contains(count)), "{counts:?}");
        }
    }
}
