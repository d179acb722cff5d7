//! A start from cells: members of a cell meet one another ([`CellFilter`]), then hosts meet visitors ([`Meet`]); what
//! they note and are offered is merged into the lists; and the exact distances of the lists at the end of every descent.

mod finish;
mod meet;
mod nearness;
mod noted;
mod offers;
mod own;

pub use finish::*;
pub use meet::*;
pub use noted::*;
pub use offers::*;
pub use own::*;
