//! Parameters of a builder by name: one table sets them from text and shows them in descriptions.

use std::collections::BTreeMap;
use std::str::FromStr;

use super::Builder;
use crate::descent::{CellSettings, Descent};
use crate::prune::Filter;
use crate::quantize::Compression;
use crate::{Device, Error, Result, Strategy};

/// A parameter: how a text sets it, and its value as text, if it is written anywhere.
enum Parameter {
    /// A parameter of the build, in reports and work folders.
    Build(fn(Builder, Value<'_>) -> Result<Builder>, fn(&Descent) -> Option<String>),
    /// A parameter of the strategy, also in descriptions of indexes. Its value may depend on the
    /// neighbours per node of the k-NN graph.
    Index(fn(Strategy, Value<'_>) -> Result<Strategy>, fn(&Strategy, usize) -> Option<String>),
}

use Parameter::{Build, Index};

/// All parameters, in the order in which [`Builder::set_all`] sets them: the filter before its own
/// parameters, since it has defaults. Descriptions call the parameter of a filter `threshold`, and
/// only alpha-CNG's second one `alpha`.
static PARAMETERS: [(&str, Parameter); 20] = [
    ("metric", Build(|b, v| v.named().map(|metric| b.metric(metric)), |d| shown(d.metric))),
    ("knn", Build(|b, v| v.whole().map(|k| b.knn(k)), |_| None)),
    ("iterations", Build(|b, v| v.named().map(|i| b.iterations(i)), |d| shown(d.iterations))),
    ("start", Build(|b, v| v.named().map(|start| b.start(start)), |d| shown(d.start))),
    ("expand", Build(|b, v| v.whole().map(|m| b.with(|d| d.expand(m))), |d| shown(d.expand))),
    (
        "nodes-per-cell",
        Build(|b, v| v.cells(b, |c| &mut c.nodes_per_cell), |d| d.settings.nodes_per_cell.and_then(shown)),
    ),
    ("probes", Build(|b, v| v.cells(b, |c| &mut c.probes), |d| d.settings.probes.and_then(shown))),
    (
        "clusterings",
        Build(|b, v| v.cells(b, |c| &mut c.clusterings), |d| d.settings.clusterings.and_then(shown)),
    ),
    ("seed", Build(|b, v| v.whole().map(|seed| b.seed(seed)), |d| shown(d.seed))),
    ("device", Build(|b, v| Device::list(v.text).map(|devices| b.devices(&devices)), |_| None)),
    ("layers", Build(|b, v| v.truth().map(|layers| b.layers(layers)), |_| None)),
    ("vectors", Build(|b, v| Compression::named(v.text).map(|codes| b.compressed(codes)), |_| None)),
    ("degree", Index(|s, v| v.whole().map(|r| s.degree(r)), |s, _| shown(s.degree))),
    ("candidates", Index(|s, v| v.whole().map(|m| s.candidates(m)), |s, _| shown(s.candidates))),
    ("collect", Index(|s, v| v.named().map(|c| s.collect(c)), |s, knn| shown(s.collect_from(knn).name()))),
    ("filter", Index(|s, v| v.named().map(|f| s.filter(f)), |s, _| shown(s.filter.name()))),
    ("alpha", Index(|s, v| v.filter(s), alpha)),
    ("angle", Index(|s, v| v.filter(s), |_, _| None)),
    ("threshold", Index(|s, v| v.filter(s), |s, _| s.filter.threshold().and_then(shown))),
    ("strict-detours", Index(|s, v| v.truth().map(|b| s.strict_detours(b)), strict_detours)),
];

fn shown(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

/// The alpha that is not the `threshold` of its filter.
fn alpha(strategy: &Strategy, _knn: usize) -> Option<String> {
    if let Filter::AlphaConvergent { rule, .. } = strategy.filter { shown(rule.alpha) } else { None }
}

fn strict_detours(strategy: &Strategy, _knn: usize) -> Option<String> {
    strategy.counts_detours().then(|| strategy.strict_detours.to_string())
}

/// The text of a parameter, beside all given ones.
#[derive(Clone, Copy)]
struct Value<'a> {
    name: &'static str,
    text: &'a str,
    given: &'a BTreeMap<&'a str, &'a str>,
}

impl Value<'_> {
    fn parsed<T: FromStr>(self, expected: &str) -> Result<T> {
        self.text.parse().map_err(|_| Error::argument(self.name, self.text, expected))
    }

    fn whole<T: FromStr>(self) -> Result<T> {
        self.parsed("a whole number from 0")
    }

    fn truth(self) -> Result<bool> {
        self.parsed("true or false")
    }

    /// A value with a name, such as a metric.
    fn named<T: FromStr<Err = Error>>(self) -> Result<T> {
        self.text.parse()
    }

    /// The builder with this number in a field of its cells.
    fn cells(
        self,
        mut builder: Builder,
        field: fn(&mut CellSettings) -> &mut Option<usize>,
    ) -> Result<Builder> {
        *field(&mut builder.descent.settings) = Some(self.whole()?);
        Ok(builder)
    }

    /// The strategy with this `alpha`, `angle` or `threshold` of its filter.
    fn filter(self, strategy: Strategy) -> Result<Strategy> {
        let (name, x) = (self.name, self.parsed("a number")?);
        let unfit = |found: String, expected| Err(Error::argument(name, found, expected));
        let is_given = |name| self.given.contains_key(name);
        let filter = match (name, &strategy.filter) {
            ("threshold", Filter::Distance { .. }) if is_given("alpha") => unfit(
                format!("{x} beside an alpha, with the dist filter"),
                "one of them, or the alpha-cng filter",
            ),
            ("threshold", Filter::Angle { .. }) if is_given("angle") => {
                unfit(format!("{x} beside an angle"), "one of them")
            }
            ("alpha" | "threshold", Filter::Distance { .. }) => Filter::distance(x),
            ("angle" | "threshold", Filter::Angle { .. }) => Filter::angle(x),
            ("alpha", &Filter::AlphaConvergent { tau, .. }) => Filter::alpha_convergent(x, tau),
            ("threshold", Filter::AlphaConvergent { rule, .. }) => Filter::alpha_convergent(rule.alpha, x),
            ("threshold", Filter::TauMonotonic { .. }) => Filter::tau_monotonic(x),
            ("threshold", Filter::Rank { .. }) => Filter::rank(x),
            ("threshold", Filter::Custom(rule)) => rule.clone().with_threshold(x).map(Filter::Custom),
            ("threshold", Filter::Spread) => unfit(x.to_string(), "no threshold with this filter"),
            (_, other) => unfit(
                format!("{x} with the {} filter", other.name()),
                if name == "alpha" { "the dist or alpha-cng filter" } else { "the angle filter" },
            ),
        };
        // Constructors name their own parameters, such as tau.
        match filter {
            Ok(filter) => Ok(strategy.filter(filter)),
            Err(Error::Argument { found, expected, .. }) => Err(Error::argument(name, found, expected)),
            Err(other) => Err(other),
        }
    }
}

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
    /// it goes before `alpha`, `angle` and `threshold`; [`set_all`](Self::set_all) takes any order.
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
        self.set_all([(name, value)])
    }

    /// Sets parameters by their names, in any order; see [`set`](Self::set).
    ///
    /// # Errors
    /// As [`set`](Self::set), and if two names give one value.
    pub fn set_all(
        mut self,
        given: impl IntoIterator<Item = (impl AsRef<str>, impl AsRef<str>)>,
    ) -> Result<Self> {
        let given: Vec<_> = given.into_iter().collect();
        let given: BTreeMap<_, _> = given.iter().map(|(name, text)| (name.as_ref(), text.as_ref())).collect();
        let names = PARAMETERS.each_ref().map(|(name, _)| *name);
        if let Some(name) = given.keys().find(|name| !names.contains(name)) {
            let expected = names.join(", ").replace(", strict-detours", " or strict-detours");
            return Err(Error::argument("parameter", name, expected));
        }
        for (name, parameter) in &PARAMETERS {
            let Some(text) = given.get(name) else { continue };
            let value = Value { name, text, given: &given };
            match parameter {
                Build(set, _) => self = set(self, value)?,
                Index(set, _) => {
                    self.strategy = set(self.strategy, value)?;
                    self.strategy.check()?;
                }
            }
        }
        Ok(self)
    }

    /// All parameters, by the names of the command line.
    pub(crate) fn all_parameters(&self, knn: usize) -> BTreeMap<String, String> {
        let mut parameters = self.parameters(knn);
        parameters.insert("index".to_owned(), self.strategy.kind.clone());
        parameters.extend(PARAMETERS.iter().filter_map(|(name, parameter)| match parameter {
            Build(_, show) => Some(((*name).to_owned(), show(&self.descent)?)),
            Index(..) => None,
        }));
        parameters
    }

    /// What [`set_all`](Self::set_all) makes this builder of one of its kind with.
    pub(crate) fn settings(&self) -> BTreeMap<String, String> {
        let mut settings = self.all_parameters(self.descent.given_knn().unwrap_or_default());
        settings.retain(|name, _| name != "index" && (name != "knn" || self.descent.given_knn().is_some()));
        settings
    }

    /// The parameters of the strategy, by the names of the command line.
    pub(crate) fn parameters(&self, knn: usize) -> BTreeMap<String, String> {
        let parameters = PARAMETERS.iter().filter_map(|(name, parameter)| match parameter {
            Build(..) => None,
            Index(_, show) => Some(((*name).to_owned(), show(&self.strategy, knn)?)),
        });
        parameters.chain([("knn".to_owned(), knn.to_string())]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn the_parameters_of_an_index_of_any_kind_make_it_again() {
        for strategy in Strategy::all() {
            let shown = Builder::new(strategy.clone()).parameters(96);
            let again = Builder::new(strategy).set_all(&shown).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(again.parameters(96), shown);
        }
    }

    #[test]
    fn a_wrong_name_or_value_says_what_fits() {
        let error = |name, value| Builder::new(Strategy::nsg()).set(name, value).unwrap_err().to_string();
        assert_eq!(error("degree", "many"), "degree: found many, expected a whole number from 0");
        assert_eq!(error("degree", "0"), "degree: found 0, expected 1 to 512");
        assert_eq!(error("layers", "1"), "layers: found 1, expected true or false");
        assert_eq!(error("angle", "60"), "angle: found 60 with the dist filter, expected the angle filter");
        assert!(error("Degree", "3").starts_with("parameter: found Degree, expected metric, knn"));
        assert!(error("Degree", "3").ends_with(", filter, alpha, angle, threshold or strict-detours"));
    }

    #[test]
    fn parameters_fit_the_filter_and_each_other_in_any_order() {
        let set = |kind: &str, given: &str| {
            let given = given.split_whitespace().map(|pair| pair.split_once('=').unwrap());
            let builder = Builder::new(kind.parse().unwrap()).set_all(given);
            builder.map_or_else(|error| error.to_string(), |builder| format!("{:?}", builder.strategy))
        };
        for (kind, given, expected) in [
            (
                "nssg",
                "alpha=1.5",
                "alpha: found 1.5 with the angle filter, expected the dist or alpha-cng filter",
            ),
            ("nsg", "angle=60", "angle: found 60 with the dist filter, expected the angle filter"),
            (
                "nsg",
                "threshold=1.0 alpha=1.5",
                "threshold: found 1 beside an alpha, with the dist filter, expected one of them, or the alpha-cng filter",
            ),
            ("nssg", "angle=50 threshold=1", "threshold: found 1 beside an angle, expected one of them"),
            ("vamana", "alpha=0", "alpha: found 0, expected an alpha from 0.01 to 100"),
            ("vamana", "threshold=0", "threshold: found 0, expected an alpha from 0.01 to 100"),
            ("dpg", "threshold=5", "threshold: found 5, expected no threshold with this filter"),
        ] {
            assert_eq!(set(kind, given), expected);
        }
        assert_eq!(set("vamana", ""), format!("{:?}", Strategy::vamana()));
        let convergent = Strategy::nsg().filter(Filter::alpha_convergent(1.5, 0.5).unwrap());
        assert_eq!(set("nsg", "threshold=0.5 alpha=1.5 filter=alpha-cng"), format!("{convergent:?}"));
    }
}
