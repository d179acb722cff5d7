//! Metrics by name.

use std::fmt;
use std::str::FromStr;

use tagore::{ElementType, Metric};

use crate::error::Result;

/// The name of a metric, `l2` unless given. Its metric depends on the type of the vectors.
#[derive(Clone)]
pub(crate) struct MetricName(String);

impl MetricName {
    /// The metric of vectors of a type.
    pub(crate) fn resolve(&self, element: ElementType) -> Result<Metric> {
        Ok(Metric::named(&self.0, element)?)
    }
}

impl Default for MetricName {
    fn default() -> Self {
        Self(Metric::default().to_string())
    }
}

impl fmt::Display for MetricName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MetricName {
    type Err = tagore::Error;

    fn from_str(name: &str) -> Result<Self, tagore::Error> {
        // The name that bits have too.
        Metric::named(name, ElementType::B1).or_else(|_| name.parse())?;
        Ok(Self(name.to_owned()))
    }
}
