//! Slots: a fixed number of places per node, to which any number of threads write without locks.
//!
//! A value goes to the slot that its hash names, and a slot keeps the smallest value by an atomic
//! minimum. The result does not depend on the order of writes.

/// The slot, of `2^bits`, of `id`. Ids that collide under one `salt` mostly differ under another.
#[inline(always)]
pub const fn slot(id: u32, salt: u32, bits: u32) -> u32 {
    (id ^ salt).wrapping_mul(0x85eb_ca6b) >> (32 - bits)
}

/// The two slots, of `2^bits`, of `id`; `bits` is at most 12, and the slots may be the same. A
/// value put into both is lost only if each gets a smaller one.
#[inline(always)]
pub const fn two_slots(id: u32, salt: u32, bits: u32) -> (u32, u32) {
    let mut mixed = (id ^ salt).wrapping_mul(0x85eb_ca6b);
    mixed = (mixed ^ (mixed >> 15)).wrapping_mul(0xc2b2_ae35);
    (mixed >> (32 - bits), mixed >> (20 - bits) & ((1 << bits) - 1))
}

const FACTOR: u32 = 0x9e37_79b1;

/// `1 / FACTOR` modulo 2^32.
const INVERSE: u32 = {
    // Newton's iteration doubles the number of correct bits.
    let mut inverse = FACTOR;
    let mut round = 0;
    while round < 5 {
        inverse = inverse.wrapping_mul(2u32.wrapping_sub(FACTOR.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

/// The rank of `id` in a permutation of all ids that `salt` selects. The last rank also marks an
/// empty slot, so one id in 2^32 is lost.
#[inline(always)]
pub const fn scramble(id: u32, salt: u32) -> u32 {
    let mixed = (id ^ salt).wrapping_mul(FACTOR);
    mixed ^ (mixed >> 16)
}

/// The id of a rank: the inverse of [`scramble`].
#[inline(always)]
pub const fn unscramble(rank: u32, salt: u32) -> u32 {
    (rank ^ (rank >> 16)).wrapping_mul(INVERSE) ^ salt
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_have_inverses() {
        for salt in [0, 1, 0xdead_beef] {
            for id in (0..1000).chain([0x7fff_ffff, u32::MAX]) {
                assert_eq!(unscramble(scramble(id, salt), salt), id);
            }
        }
    }

    #[test]
    fn ids_that_collide_in_one_slot_differ_in_the_other() {
        let (mut meet, mut meet_twice) = (0, 0);
        let slots = |id| two_slots(id, 77, 7);
        for a in 0..2000 {
            for b in a + 1..2000 {
                meet += u32::from(slots(a).0 == slots(b).0);
                meet_twice += u32::from(slots(a) == slots(b));
            }
        }
        // Of two million pairs one in 128 collides, and of these one in 128 again.
        assert!((14_000..17_500).contains(&meet) && meet_twice < 250, "{meet} {meet_twice}");
    }

    #[test]
    fn slots_are_used_evenly() {
        for salt in [0, 12345, 0xffff_0000] {
            let mut counts = [0; 64];
            (0..6400).for_each(|id| counts[slot(id, salt, 6) as usize] += 1);
            assert!(counts.iter().all(|count| (50..=150).contains(count)), "{counts:?}");
        }
    }
}
