//! Plots as SVG, and reports as pages of HTML.

mod chart;
mod degrees;
mod html;
mod recall_qps;
mod scale;
mod timeline;

pub use html::report_page;
pub(crate) use recall_qps::{Series, recall_qps_plot};
pub(crate) use timeline::timeline_plot;
