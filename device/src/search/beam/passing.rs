//! How a search with a filter goes on through nodes that do not pass.

/// The number of neighbours that do not pass through which a search goes on to their neighbours, of
/// a node of which `passing` neighbours pass and `others` do not. If the same share passes there,
/// the search meets about as many passing nodes as the node has neighbours.
///
/// The number does not depend on what was visited before, so searches with a small table of
/// visited nodes find what others do.
pub const fn through(passing: u32, others: u32) -> u32 {
    if passing == 0 { others } else { (2 * others + passing) / (2 * passing) }
}
