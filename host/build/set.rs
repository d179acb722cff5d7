//! Parameters of a builder by name.

use std::str::FromStr;

use super::Builder;
use crate::descent::CellSettings;
use crate::quantize::Compression;
use crate::{Device, Error, Overrides, Result};

impl Builder {
    /// Sets a parameter by its name on the command line, such as `degree` to `48`: for bindings and
    /// configuration files. An index's [`Description`](crate::Description) has the same names.
    ///
    /// | names | values |
    /// | --- | --- |
    /// | `metric` | `l2`, `ip`, `cosine` |
    /// | `knn`, `expand`, `nodes-per-cell`, `probes`, `clusterings`, `seed` | whole numbers |
    /// | `iterations` | `auto`, or both phases as `6,6` |
    /// | `start` | `auto`, `all-pairs`, `random`, `cells` |
    /// | `device` | a name, such as `cpu` or `cuda:1`, or several as `cuda:0,1` |
    /// | `degree`, `candidates` | whole numbers |
    /// | `collect`, `filter` | names, such as `2-hop` and `angle` |
    /// | `alpha`, `angle`, `threshold` | numbers |
    /// | `strict-detours`, `layers` | `true`, `false` |
    /// | `vectors` | `full`, `f16`, `int8` ([`compressed`](Self::compressed)) |
    ///
    /// A later call replaces what an earlier one set. `filter` also sets its default threshold, so
    /// it goes before `alpha`, `angle` and `threshold`.
    ///
    /// ```
    /// use tagore::{Builder, Strategy};
    /// let builder = Builder::new(Strategy::vamana()).set("degree", "48")?.set("alpha", "1.2")?;
    /// assert_eq!(builder.strategy().max_degree(), 48);
    /// assert!(builder.set("degre", "48").is_err());
    /// # Ok::<(), tagore::Error>(())
    /// ```
    ///
    /// # Errors
    /// If no parameter has this name, or the value is none of the parameter's.
    pub fn set(self, name: &str, value: &str) -> Result<Self> {
        match name {
            "metric" => Ok(self.metric(value.parse()?)),
            "knn" => Ok(self.knn(whole("knn", value)?)),
            "iterations" => Ok(self.iterations(value.parse()?)),
            "start" => Ok(self.start(value.parse()?)),
            "expand" => {
                let neighbours = whole("expand", value)?;
                Ok(self.with(|descent| descent.expand(neighbours)))
            }
            "nodes-per-cell" => {
                let nodes = Some(whole("nodes-per-cell", value)?);
                Ok(self.with_cells(|cells| CellSettings { nodes_per_cell: nodes, ..cells }))
            }
            "probes" => {
                let probes = Some(whole("probes", value)?);
                Ok(self.with_cells(|cells| CellSettings { probes, ..cells }))
            }
            "clusterings" => {
                let clusterings = Some(whole("clusterings", value)?);
                Ok(self.with_cells(|cells| CellSettings { clusterings, ..cells }))
            }
            "seed" => Ok(self.seed(whole("seed", value)?)),
            "device" => Ok(self.devices(&Device::list(value)?)),
            "vectors" => Ok(self.compressed(Compression::named(value)?)),
            "layers" => Ok(self.layers(parsed("layers", value, TRUTH)?)),
            _ => self.set_pruning(name, value),
        }
    }

    /// Sets a parameter of the strategy.
    fn set_pruning(self, name: &str, value: &str) -> Result<Self> {
        let mut overrides = Overrides::default();
        match name {
            "degree" => overrides.degree = Some(whole("degree", value)?),
            "candidates" => overrides.candidates = Some(whole("candidates", value)?),
            "collect" => overrides.collect = Some(value.parse()?),
            "filter" => overrides.filter = Some(value.parse()?),
            "alpha" => overrides.alpha = Some(parsed("alpha", value, NUMBER)?),
            "angle" => overrides.angle = Some(parsed("angle", value, NUMBER)?),
            "threshold" => overrides.threshold = Some(parsed("threshold", value, NUMBER)?),
            "strict-detours" => overrides.strict_detours = Some(parsed("strict-detours", value, TRUTH)?),
            _ => return Err(Error::argument("parameter", name, NAMES)),
        }
        let strategy = self.strategy.clone().with(&overrides)?;
        Ok(Self { strategy, ..self })
    }

    fn with_cells(self, change: impl FnOnce(CellSettings) -> CellSettings) -> Self {
        self.with(|descent| {
            let cells = change(descent.settings);
            descent.cells(cells)
        })
    }
}

/// The names of [`Builder::set`], for errors.
const NAMES: &str = "metric, knn, iterations, start, expand, nodes-per-cell, probes, clusterings, seed, device, \
                     layers, vectors, degree, candidates, collect, filter, alpha, angle, threshold or strict-detours";

const NUMBER: &str = "a number";
const TRUTH: &str = "true or false";

fn whole<T: FromStr>(name: &'static str, value: &str) -> Result<T> {
    parsed(name, value, "a whole number from 0")
}

fn parsed<T: FromStr>(name: &'static str, value: &str, expected: &str) -> Result<T> {
    value.parse().map_err(|_| Error::argument(name, value, expected))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Strategy;

    #[test]
    fn a_name_sets_what_the_parameters_of_an_index_show() {
        let given = [
            ("metric", "cosine"),
            ("knn", "40"),
            ("iterations", "3,4"),
            ("start", "random"),
            ("expand", "5"),
            ("nodes-per-cell", "64"),
            ("probes", "7"),
            ("clusterings", "2"),
            ("degree", "20"),
            ("candidates", "50"),
            ("collect", "2-hop"),
            ("filter", "alpha-cng"),
            ("alpha", "1.25"),
            ("threshold", "0.5"),
        ];
        let set = |builder: Builder, (name, value): &(&str, &str)| builder.set(name, value).unwrap();
        let builder = given.iter().fold(Builder::new(Strategy::nsg()), set);
        let shown = builder.all_parameters(40);
        for (name, value) in given {
            let shown = shown.get(name).unwrap_or_else(|| panic!("{name} is not shown: {shown:?}"));
            assert_eq!(shown, value, "{name}");
        }
        let builder = set(set(builder, &("seed", "9")), &("device", "cpu"));
        let builder = set(set(builder, &("filter", "rank")), &("strict-detours", "false"));
        assert_eq!((builder.descent.seed, builder.descent.device), (9, Device::Cpu));
        assert_eq!(builder.all_parameters(40)["strict-detours"], "false");
        assert!(!set(builder, &("layers", "false")).is_layered());
    }

    #[test]
    fn a_wrong_name_or_value_says_what_fits() {
        let error = |name, value| Builder::new(Strategy::nsg()).set(name, value).unwrap_err().to_string();
        assert_eq!(error("degree", "many"), "degree: found many, expected a whole number from 0");
        assert_eq!(error("degree", "0"), "degree: found 0, expected 1 to 512");
        assert_eq!(error("layers", "1"), "layers: found 1, expected true or false");
        assert_eq!(error("angle", "60"), "angle: found 60 with the dist filter, expected the angle filter");
        assert!(error("Degree", "3").starts_with("parameter: found Degree, expected metric, knn"));
        assert!(
            NAMES
                .split(", ")
                .flat_map(|names| names.split(" or "))
                .all(|name| { !error(name, "\u{0}").starts_with("parameter") })
        );
    }
}
