//! How a search with a filter goes on through nodes that do not pass.

/// The number of the `others`, neighbours of a node that do not pass, through which a search goes
/// on to their own neighbours where `passing` neighbours pass: so many that about as many pass in
/// all as the node has neighbours, if as many pass there as here.
///
/// The number does not depend on what was visited before, so searches with a small table of
/// visited nodes find what others do.
pub const fn through(passing: u32, others: u32) -> u32 {
    if passing == 0 { others } else { (2 * others + passing) / (2 * passing) }
}
