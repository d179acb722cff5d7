//! The choice between a build on the vectors, one on their codes, and one in clusters.

use super::{ClusterPlan, Limits};
use crate::{Builder, DataShape, ElementType, Result, Target, Vectors};

impl Builder {
    /// Chooses how `base` is built within memory: on the vectors if that fits the `given` limits
    /// and free memory, else [on codes](Self::compressed) of one byte per component, else in the
    /// clusters that are returned. A builder that is on codes already is not changed.
    ///
    /// # Errors
    /// As [`ClusterPlan::within`].
    pub fn fit(self, base: &Vectors, given: &Limits) -> Result<(Self, Option<ClusterPlan>)> {
        self.fit_by(base.element_type(), |builder| ClusterPlan::within(builder, base, given))
    }

    /// [`fit`](Self::fit) for data of this shape on a target, with the arguments of
    /// [`ClusterPlan::on`].
    ///
    /// # Errors
    /// As [`ClusterPlan::on`].
    pub fn fit_on(
        self,
        data: &DataShape,
        limits: &Limits,
        target: Target,
        devices: usize,
    ) -> Result<(Self, Option<ClusterPlan>)> {
        self.fit_by(data.element, |builder| ClusterPlan::on(builder, data, limits, target, devices))
    }

    fn fit_by(
        self,
        element: ElementType,
        plan: impl Fn(&Self) -> Result<Option<ClusterPlan>>,
    ) -> Result<(Self, Option<ClusterPlan>)> {
        let clusters = plan(&self)?;
        if clusters.is_none() || element.row_bytes(1) == 1 {
            return Ok((self, clusters));
        }
        let on_codes = self.on_bytes();
        // Codes that do not fit are an error: they are not built in clusters.
        match plan(&on_codes) {
            Ok(None) => Ok((on_codes, None)),
            _ => Ok((self, clusters)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Device, Strategy};

    #[test]
    fn codes_come_before_clusters() {
        let builder = Builder::new(Strategy::cagra()).knn(64);
        let data = DataShape::new(1_000_000, 960, ElementType::F32).unwrap();
        let fit = |data: &DataShape, bytes: u64| {
            let limits = Limits { gpu_memory: Some(bytes), ..Limits::default() };
            let (builder, clusters) = builder.clone().fit_on(data, &limits, Target::cuda(), 1).unwrap();
            (builder.compression().map_or("full", |codes| codes.name()), clusters.is_some())
        };
        assert_eq!(fit(&data, 12 << 30), ("full", false));
        assert_eq!(fit(&data, 5 << 30), ("int8", false));
        assert_eq!(fit(&data, 2 << 30), ("full", true));
        // Codes of bytes are bytes.
        let bytes = DataShape::new(1_000_000, 960, ElementType::U8).unwrap();
        assert_eq!(fit(&bytes, 2 << 30), ("full", true));
        let chosen = builder.clone().device(Device::Cpu).set("vectors", "f16").unwrap();
        let limits = Limits { gpu_memory: Some(12 << 30), ..Limits::default() };
        let (chosen, clusters) = chosen.fit_on(&data, &limits, Target::cuda(), 1).unwrap();
        assert_eq!(chosen.compression().map(|codes| codes.name()), Some("f16"));
        assert_eq!(clusters, None);
    }
}
