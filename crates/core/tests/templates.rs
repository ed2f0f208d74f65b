//! Tests of code that is made from the names of variables and columns.
#![cfg(not(target_arch = "wasm32"))]

use std::collections::BTreeMap;

use proptest::prelude::*;
use sandglass_core::limits::MAX_OFFERED;
use sandglass_core::predictions::{Context, Prediction, Predictor, Source, is_name, literal};
use sandglass_core::protocol::{ColumnKind, ColumnSample, SurveyedColumn, SurveyedVariable};

fn variable(name: &str, type_name: &str, length: u32) -> SurveyedVariable {
    SurveyedVariable {
        name: name.to_owned(),
        type_name: type_name.to_owned(),
        length: Some(length),
        memory: None,
        columns: Vec::new(),
    }
}

fn table(name: &str, rows: u32, columns: &[(&str, ColumnKind)]) -> SurveyedVariable {
    let columns = columns.iter().map(|(name, kind)| SurveyedColumn {
        name: (*name).to_owned(),
        kind: *kind,
        sample: None,
    });
    SurveyedVariable {
        columns: columns.collect(),
        ..variable(name, "DataFrame", rows)
    }
}

/// A table of sales. `code` was the last code about it.
fn sales(code: &str) -> Context {
    let mut context = Context::default();
    let columns = [
        ("region", ColumnKind::Text),
        ("it's new", ColumnKind::Bool),
        ("amount", ColumnKind::Number),
        ("price", ColumnKind::Number),
        ("day", ColumnKind::Time),
    ];
    context.surveyed(vec![table("sales", 1_000_000, &columns)]);
    context.ran(code, 250.0);
    context
}

fn codes(context: &Context, source: Source) -> Vec<String> {
    let predictions = context.predictions().into_iter();
    predictions
        .filter(|prediction| prediction.source == source)
        .map(|prediction| prediction.code)
        .collect()
}

fn has(codes: &[String], wanted: &[&str]) {
    for code in wanted {
        assert!(codes.iter().any(|known| known == code), "{code} is not in {codes:#?}");
    }
}

#[test]
fn tables_are_asked_what_tables_are_asked() {
    let codes = codes(&sales("import pandas as pd"), Source::Dataframe);
    has(
        &codes,
        &[
            "sales.head()",
            "sales.describe()",
            "sales.isna().sum()",
            "sales.corr(numeric_only=True)",
            "sales[\"region\"].value_counts()",
            "sales[\"it's new\"].value_counts()",
            "sales[\"amount\"].describe()",
            "sales.groupby(\"region\")[\"price\"].mean()",
        ],
    );
}

/// A table of orders with some known facts.
fn orders() -> Context {
    let mut orders = table(
        "orders",
        1_000_000,
        &[
            ("id", ColumnKind::Text),
            ("city", ColumnKind::Text),
            ("rating", ColumnKind::Number),
            ("amount", ColumnKind::Number),
        ],
    );
    orders.memory = Some(50_000_000);
    let known = [
        (100, &["a1", "b2"][..]),
        (3, &["Berlin", "New York"][..]),
        (5, &[]),
        (90, &[]),
    ];
    for (column, (distinct, texts)) in orders.columns.iter_mut().zip(known) {
        column.sample = Some(ColumnSample {
            rows: 100,
            nulls: u32::from(column.name == "amount") * 4,
            distinct,
            texts: texts.iter().map(|text| (*text).to_owned()).collect(),
        });
    }
    let mut context = Context::default();
    context.surveyed(vec![orders]);
    context
}

#[test]
fn groups_are_what_values_make_them() {
    let codes = codes(&orders(), Source::Dataframe);
    has(
        &codes,
        &[
            "orders[\"city\"].value_counts()",
            "orders[\"rating\"].value_counts()",
            "orders.groupby(\"city\")[\"amount\"].mean()",
            "orders.groupby(\"rating\")[\"amount\"].sum()",
        ],
    );
    let senseless = |code: &&String| {
        code.contains("[\"id\"].value_counts")
            || code.contains("groupby(\"id\")")
            || code.contains("\"amount\"].value_counts")
    };
    assert_eq!(codes.iter().find(senseless), None);
}

#[test]
fn values_and_gaps_that_are_talked_of_are_looked_for() {
    let mut context = orders();
    context.converse("How many orders are from New York? Are there missing ones?");
    let found = codes(&context, Source::Conversation);
    has(
        &found,
        &[
            "orders[orders[\"city\"] == \"New York\"]",
            "(orders[\"city\"] == \"New York\").sum()",
            "orders.isna().sum()",
            "orders[\"amount\"].isna().sum()",
        ],
    );
    assert!(
        !found
            .iter()
            .any(|code| code.contains("Berlin") || code.contains("\"city\"].isna"))
    );
    let ms = |code: &str| {
        let all = context.predictions().into_iter();
        all.filter(|guess| guess.code.contains(code))
            .find_map(|guess| guess.estimated_ms)
    };
    assert!(
        ms("orders[orders") > ms("== \"New York\").sum"),
        "the rows have to be copied"
    );
}

#[test]
fn who_prints_and_quotes_so_is_expected_to_do_it_again() {
    let codes = codes(&sales("x = sales['amount']\nprint(x)"), Source::Dataframe);
    has(
        &codes,
        &[
            "print(sales.head())",
            "sales.info()",
            "print(sales['region'].value_counts())",
            "print(sales['it\\'s new'].value_counts())",
        ],
    );
}

#[test]
fn what_was_read_is_looked_at() {
    let context = sales("import pandas as pd\nsales = pd.read_csv(\"sales.csv\")");
    let after = ["sales.head()", "sales.info()", "sales.describe()", "sales.shape"];
    assert_eq!(codes(&context, Source::Pattern), after);
}

#[test]
fn what_was_filtered_is_counted() {
    let context = sales("sales = sales[sales.amount > 3]");
    assert_eq!(codes(&context, Source::Pattern), ["sales.shape", "sales.head()"]);
}

#[test]
fn groups_and_columns_are_taken_together() {
    let mut context = Context::default();
    let groups = variable("groups", "DataFrameGroupBy", 0);
    let amounts = variable("amounts", "Series", 0);
    context.surveyed(vec![groups, amounts]);
    context.ran("groups = sales.groupby('region')", 1.0);
    has(
        &codes(&context, Source::Pattern),
        &["groups.mean()", "groups.count()", "groups.sum()", "groups.size()"],
    );
    context.ran("amounts = sales['amount']", 1.0);
    has(
        &codes(&context, Source::Pattern),
        &["amounts.describe()", "amounts.mean()", "amounts.value_counts()"],
    );
}

#[test]
fn the_same_may_be_asked_of_another_column_or_table() {
    let mut context = sales("sales.groupby('region')['amount'].mean()");
    let same = context.predictions();
    let other = same.iter().find(|guess| guess.source == Source::Code).expect("a guess");
    assert_eq!(other.code, "sales.groupby('region')['price'].mean()");
    assert_eq!(other.estimated_ms, Some(250.0), "it takes as long");
    assert_eq!(other.dependencies, ["sales", "price"]);
    let both = [("amount", ColumnKind::Number), ("region", ColumnKind::Text)];
    let (less, more) = (table("sales", 10, &both), table("presales", 20, &both));
    context.surveyed(vec![less, more]);
    context.ran("sales.presales = len(sales); sales['region'].nunique()", 8.0);
    let guesses = context.predictions();
    let other = guesses
        .iter()
        .find(|guess| guess.source == Source::Code)
        .expect("a guess");
    assert_eq!(
        other.code, "presales.presales = len(presales); presales['region'].nunique()",
        "names, and not what looks like them"
    );
    assert_eq!(other.estimated_ms, Some(16.0), "of twice as many rows");
}

#[test]
fn words_are_about_tables_columns_and_texts() {
    let mut context = sales("import pandas as pd");
    assert_eq!(codes(&context, Source::Conversation), Vec::<String>::new());
    assert!(context.converse("What is the average price in each region? Are values missing?"));
    assert!(!context.converse("Are values missing? What is the average price in each region?"));
    let guesses = context.predictions();
    let said: Vec<_> = guesses
        .iter()
        .filter(|guess| guess.source == Source::Conversation)
        .collect();
    let code = |guess: &&&Prediction| guess.code.as_str() == "sales[\"price\"].mean()";
    let (named, other) = (
        said.iter().find(code).expect("a guess").probability,
        said.iter()
            .find(|guess| guess.code == "sales[\"amount\"].mean()")
            .expect("a guess")
            .probability,
    );
    assert!(named > 3.0 * other, "it is named: {named}, {other}");
    has(
        &said.iter().map(|guess| guess.code.clone()).collect::<Vec<_>>(),
        &["sales.isna().sum()", "sales.groupby(\"region\")[\"price\"].mean()"],
    );

    let mut context = Context::default();
    context.surveyed(vec![variable("context", "str", 1_000)]);
    context.converse("Find `def main` in it, and \"x\"");
    has(
        &codes(&context, Source::Conversation),
        &[
            "context.count(\"def main\")",
            "re.findall(\"def main\", context)",
            "[line for line in context.splitlines() if \"def main\" in line]",
        ],
    );
}

#[test]
fn texts_and_lists_are_looked_into() {
    let mut context = Context::default();
    context.surveyed(vec![variable("rows", "list", 9), variable("context", "str", 1_000)]);
    context.ran("print(1)", 1.0);
    has(
        &codes(&context, Source::Pattern),
        &[
            "print(len(context))",
            "print(context[:1000])",
            "lines = context.split(\"\\n\")",
            "print(len(context.splitlines()))",
            "print(len(rows))",
            "print(rows[0])",
        ],
    );
}

#[test]
fn only_names_that_code_can_use_are_used() {
    let mut context = Context::default();
    let names = ["x y", "x;import os", "for", "é", "", "9x", "x.y", "fine_1"];
    context.surveyed(names.iter().map(|name| variable(name, "str", 1)).collect());
    assert_eq!(context.variables.len(), 1);
    assert!(is_name("_") && is_name("x9") && !is_name("None"));
}

#[test]
fn what_comes_true_is_learned_from_what_was_never_run() {
    let context = sales("import pandas as pd");
    let mut predictor = Predictor::default();
    let find = |predictor: &mut Predictor, code: &str| {
        predictor.offer(context.predictions());
        let offered = predictor.offered();
        offered.into_iter().find(|guess| guess.code == code).expect("a guess")
    };
    let before = find(&mut predictor, "sales.describe()");
    predictor.came("sales.describe()");
    predictor.took(500.0);
    let true_once = find(&mut predictor, "sales.describe()");
    assert!(true_once.probability > before.probability);
    assert_eq!(true_once.estimated_ms, Some(500.0), "as it was");
    let never = find(&mut predictor, "sales.nunique()");
    predictor.came("something else");
    predictor.took(1.0);
    assert!(find(&mut predictor, "sales.describe()").probability < true_once.probability);
    assert_eq!(find(&mut predictor, "sales.describe()").estimated_ms, Some(500.0));
    assert!(find(&mut predictor, "sales.nunique()").probability < never.probability);
}

#[test]
fn the_most_worthwhile_comes_first_and_what_was_told_before_it() {
    let mut predictor = Predictor::default();
    predictor.offer(sales("x = 1").predictions());
    let offered = predictor.offered();
    let saving = |guess: &Prediction| guess.probability * guess.estimated_ms.unwrap_or_default();
    assert!(offered.windows(2).all(|pair| saving(&pair[0]) >= saving(&pair[1])));
    predictor.predict(vec![Prediction::told(0, "told".to_owned(), Source::Explicit, 1.0)]);
    predictor.offer(sales("x = 1").predictions());
    assert_eq!(predictor.choose().map(|chosen| chosen.code), Some("told".to_owned()));
}

/// The value of a Python literal that `literal` wrote. Read by Python's own rules, not by the tested code.
fn meaning(source: &str) -> Option<String> {
    let mut chars = source.chars();
    let quote = chars.next().filter(|quote| ['"', '\''].contains(quote))?;
    let mut text = String::new();
    loop {
        match chars.next()? {
            '\\' => match chars.next()? {
                'n' => text.push('\n'),
                'r' => text.push('\r'),
                't' => text.push('\t'),
                'x' => {
                    let digits: String = chars.by_ref().take(2).collect();
                    text.push(char::from(u8::from_str_radix(&digits, 16).ok()?));
                }
                escaped @ ('\\' | '"' | '\'') => text.push(escaped),
                _ => return None,
            },
            '\n' | '\r' | '\0' => return None,
            end if end == quote => return chars.next().is_none().then_some(text),
            char => text.push(char),
        }
    }
}

fn any_name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "[\"'\\\\\n\r\t\0{}\\[\\]\u{2028}\u{85}\u{feff}a-z]{0,12}",
        Just("\"]; import os; x[\"".to_owned()),
    ]
}

proptest! {
    #[test]
    fn no_text_breaks_out_of_its_literal(text in any_name(), single in any::<bool>()) {
        let source = literal(&text, if single { '\'' } else { '"' });
        prop_assert_eq!(meaning(&source), Some(text), "{}", source);
        prop_assert!(source.chars().all(|char| !char.is_control()));
    }

    /// Checks that unusual column names change only literals in the code, compared with harmless names.
    #[test]
    fn columns_are_in_code_as_literals_only(names in proptest::collection::btree_set(any_name(), 1..5), says in any::<bool>()) {
        let names: Vec<_> = names.into_iter().collect();
        let made = |names: &[String]| {
            let mut context = Context::default();
            let columns: Vec<_> = names.iter().map(|name| (name.as_str(), ColumnKind::Text)).collect();
            context.surveyed(vec![table("t", 5, &columns)]);
            if says {
                context.converse("how common are they");
            }
            codes(&context, Source::Dataframe).into_iter().chain(codes(&context, Source::Conversation)).collect::<Vec<_>>()
        };
        let harmless: Vec<String> = (0..names.len()).map(|number| format!("harmless{number}")).collect();
        let wanted: Vec<_> = made(&harmless).into_iter().map(|code| {
            harmless.iter().zip(&names).fold(code, |code, (harmless, name)| {
                code.replace(&format!("\"{harmless}\""), &literal(name, '"'))
            })
        }).collect();
        prop_assert_eq!(made(&names), wanted);
    }

    #[test]
    fn guesses_are_bounded_and_their_probabilities_are_parts_of_one(
        rows in any::<u32>(),
        columns in proptest::collection::vec((any_name(), 0..5_usize), 0..50),
        tables in 0..20_usize,
        (looked, nulls, distinct, memory) in any::<(u32, u32, u32, u64)>(),
        code in any_name(),
        text in any_name(),
    ) {
        let kinds = [ColumnKind::Number, ColumnKind::Text, ColumnKind::Time, ColumnKind::Bool, ColumnKind::Other];
        let columns: Vec<_> = columns.iter().map(|(name, kind)| (name.as_str(), kinds[*kind])).collect();
        let mut context = Context::default();
        let mut variables: Vec<_> = (0..tables).map(|number| table(&format!("t{number}"), rows, &columns)).collect();
        let sample = ColumnSample { rows: looked, nulls, distinct, texts: vec![text.clone()] };
        for table in &mut variables {
            table.memory = Some(memory);
            table.columns.iter_mut().for_each(|column| column.sample = Some(sample.clone()));
        }
        variables.push(variable("context", "str", rows));
        context.surveyed(variables);
        context.ran(&format!("t0[{code}]"), 10.0);
        context.converse(&format!("average total distribution missing {text}"));
        let guesses = context.predictions();
        prop_assert!(guesses.len() <= MAX_OFFERED);
        let mut sums: BTreeMap<_, f64> = BTreeMap::new();
        for guess in &guesses {
            prop_assert!(guess.source.is_guess() && guess.probability > 0.0);
            prop_assert!(guess.estimated_ms.is_some_and(|ms| ms.is_finite() && ms >= 0.0));
            *sums.entry((guess.source, guess.description)).or_default() += guess.probability;
        }
        prop_assert!(sums.values().all(|sum| (sum - 1.0).abs() < 1e-9), "{:?}", sums);
    }
}
