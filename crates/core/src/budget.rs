//! Budgets for a tree of sandboxes: calls of models, tokens, cost, time and depth of recursion.
//!
//! Budgets form a tree. Use of a budget also counts in all budgets above it, so a limit at the root holds for all children together.
//! [`Budget::scope`] makes a part at the same depth, for an execution. [`Budget::child`] makes a part one level deeper, for a recursion.
//! Times are milliseconds on the driver's monotonic clock.
//!
//! Decisions: `docs/internals/values-and-calls.md`.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::limits::Naming;

/// The limits of a budget. A missing field means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct BudgetLimits {
    /// The most calls of models: `llm_query`, `rlm_query`, and a controller's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub max_calls: Option<f64>,
    /// The most tokens, input and output together. Only tokens that callbacks report count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub max_tokens: Option<f64>,
    /// The highest cost, in the currency that callbacks report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub max_cost: Option<f64>,
    /// The longest time, in milliseconds from the budget's beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub max_time: Option<f64>,
    /// Levels of recursion below this budget; with 0, `rlm_query` is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub max_depth: Option<f64>,
}

/// The amounts that calls of models have used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct Usage {
    /// The number of calls.
    pub calls: f64,
    /// Tokens of the prompts, as reported by callbacks.
    pub input_tokens: f64,
    /// Tokens of the answers, as reported by callbacks.
    pub output_tokens: f64,
    /// Cost, as reported by callbacks.
    pub cost: f64,
}

/// The amounts that are left in a budget and all budgets above it. A missing field means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[cfg_attr(target_arch = "wasm32", derive(tsify::Tsify))]
pub struct BudgetLeft {
    /// Calls of models that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub calls: Option<f64>,
    /// Tokens that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub tokens: Option<f64>,
    /// Cost that is left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub cost: Option<f64>,
    /// Time that is left, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub time: Option<f64>,
    /// Levels of recursion that are left.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(target_arch = "wasm32", tsify(optional))]
    pub depth: Option<f64>,
}

/// The limit that was reached, with its amount.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Exhausted {
    /// The limit of calls.
    #[error("the budget of {most} model calls is used up (maxCalls)")]
    Calls {
        /// Calls so far.
        made: f64,
        /// Calls that were requested at once.
        more: f64,
        /// The most calls.
        most: f64,
    },
    /// The limit of tokens.
    #[error("the budget of {0} tokens is used up (maxTokens)")]
    Tokens(f64),
    /// The limit of cost.
    #[error("the budget's cost of {0} is used up (maxCost)")]
    Cost(f64),
    /// The limit of time, in milliseconds.
    #[error("the budget's time of {0} ms is over (maxTime)")]
    Time(f64),
    /// The limit of depth.
    #[error("recursion deeper than {0} is not in the budget (maxDepth): use llm_query, or do it here")]
    Depth(f64),
}

impl Exhausted {
    /// The text, with the option's name in this style.
    pub fn text(&self, naming: Naming) -> String {
        let option = match self {
            Self::Calls { .. } => "maxCalls",
            Self::Tokens(_) => "maxTokens",
            Self::Cost(_) => "maxCost",
            Self::Time(_) => "maxTime",
            Self::Depth(_) => "maxDepth",
        };
        self.to_string().replace(option, &naming.of(option))
    }
}

impl BudgetLimits {
    /// Sets the limit of a public name.
    ///
    /// # Errors
    /// [`Error::InvalidOption`] for an unknown name, or a value that is not an amount. Then nothing is changed.
    pub fn set(&mut self, name: &str, value: f64) -> Result<(), Error> {
        let (limit, whole) = match name {
            "maxCalls" => (&mut self.max_calls, true),
            "maxTokens" => (&mut self.max_tokens, true),
            "maxCost" => (&mut self.max_cost, false),
            "maxTime" => (&mut self.max_time, false),
            "maxDepth" => (&mut self.max_depth, true),
            _ => {
                return Err(Error::invalid(
                    format!("budget.{name}"),
                    "there is no such limit: maxCalls, maxTokens, maxCost, maxTime or maxDepth",
                ));
            }
        };
        if !(0.0..=MOST).contains(&value) || (whole && value.fract() != 0.0) {
            let kind = if whole { "whole number" } else { "number" };
            return Err(Error::invalid(
                format!("budget.{name}"),
                format!("must be a {kind} of 0 or more, not {value}"),
            ));
        }
        *limit = Some(value);
        Ok(())
    }
}

impl Usage {
    /// The sum of input and output tokens.
    pub fn tokens(&self) -> f64 {
        self.input_tokens + self.output_tokens
    }

    /// Adds another use.
    pub(crate) fn add(&mut self, more: &Self) {
        // Callbacks report these numbers. A negative one or NaN must not make room in the budget.
        let amount = |value: f64| if value > 0.0 { value.min(MOST) } else { 0.0 };
        self.calls += amount(more.calls);
        self.input_tokens += amount(more.input_tokens);
        self.output_tokens += amount(more.output_tokens);
        self.cost += amount(more.cost);
    }
}

/// The greatest amount. Floats are exact for whole numbers up to here.
const MOST: f64 = 9_007_199_254_740_991.0;
/// The bytes of a token in most languages' text, roughly.
const BYTES_PER_TOKEN: f64 = 4.0;

/// A node in a tree of budgets. Clones share the node.
#[derive(Clone)]
pub struct Budget(Arc<Node>);

struct Node {
    limits: BudgetLimits,
    began_at: f64,
    depth: f64,
    parent: Option<Budget>,
    spent: Mutex<Spent>,
}

/// The use of a node so far.
#[derive(Default)]
struct Spent {
    usage: Usage,
    /// The number of calls that have reported their use.
    reports: f64,
}

impl Budget {
    /// The root of a tree, which begins now.
    pub fn new(limits: BudgetLimits, now: f64) -> Self {
        Self::node(limits, now, 0.0, None)
    }

    /// A part of this budget, at the same depth.
    pub fn scope(&self, limits: BudgetLimits, now: f64) -> Self {
        Self::node(limits, now, self.0.depth, Some(self.clone()))
    }

    /// A part of this budget, one level deeper. [`Budget::may_recurse`] checks that the level is allowed.
    pub fn child(&self, limits: BudgetLimits, now: f64) -> Self {
        Self::node(limits, now, self.0.depth + 1.0, Some(self.clone()))
    }

    fn node(limits: BudgetLimits, began_at: f64, depth: f64, parent: Option<Self>) -> Self {
        Self(Arc::new(Node {
            limits,
            began_at,
            depth,
            parent,
            spent: Mutex::default(),
        }))
    }

    /// The limits of this node.
    pub fn limits(&self) -> BudgetLimits {
        self.0.limits
    }

    /// The number of levels from the root to this budget.
    pub fn depth(&self) -> f64 {
        self.0.depth
    }

    /// The use of this budget and all parts of it.
    pub fn spent(&self) -> Usage {
        self.lock().usage
    }

    /// Counts one call of a model in this budget and all above it, or in none of them.
    ///
    /// # Errors
    /// [`Exhausted`] if a budget has nothing left for it.
    pub fn admit(&self, now: f64) -> Result<(), Exhausted> {
        self.admit_all(1, now)
    }

    /// Counts `calls` calls, all of them or none.
    ///
    /// # Errors
    /// [`Exhausted`] if a budget has not enough left for all.
    pub fn admit_all(&self, calls: u32, now: f64) -> Result<(), Exhausted> {
        self.go_on(now)?;
        let more = f64::from(calls);
        // Another thread may use up a budget meanwhile. Then the calls that were counted so far are given back.
        for budget in self.chain() {
            let mut spent = budget.lock();
            let made = spent.usage.calls;
            match budget.0.limits.max_calls {
                Some(most) if made + more > most => {
                    drop(spent);
                    for counted in self.chain().take_while(|counted| !Arc::ptr_eq(&counted.0, &budget.0)) {
                        counted.lock().usage.calls -= more;
                    }
                    return Err(Exhausted::Calls { made, more, most });
                }
                _ => spent.usage.calls += more,
            }
        }
        Ok(())
    }

    /// Counts a call that the budgets above this one have counted already.
    ///
    /// # Errors
    /// [`Exhausted`] if this budget has no call left, or time, tokens or cost are used up by now.
    pub fn admit_here(&self, now: f64) -> Result<(), Exhausted> {
        self.go_on(now)?;
        let mut spent = self.lock();
        let made = spent.usage.calls;
        match self.0.limits.max_calls {
            Some(most) if made + 1.0 > most => Err(Exhausted::Calls { made, more: 1.0, most }),
            _ => {
                spent.usage.calls += 1.0;
                Ok(())
            }
        }
    }

    /// Checks that a counted call may still begin.
    ///
    /// # Errors
    /// [`Exhausted`] if time, tokens or cost are used up by now.
    pub fn go_on(&self, now: f64) -> Result<(), Exhausted> {
        self.chain()
            .find_map(|budget| budget.exhausted(now))
            .map_or(Ok(()), Err)
    }

    /// Adds a call's use. Tokens and cost of one call may pass the limit; the next call is refused.
    pub fn charge(&self, usage: &Usage) {
        for budget in self.chain() {
            let mut spent = budget.lock();
            spent.usage.add(usage);
            if usage.tokens() > 0.0 || usage.cost > 0.0 {
                spent.reports += 1.0;
            }
        }
    }

    /// The use that is expected of a call whose prompt has this size. Four bytes of the prompt are a token. Reply and cost are the means
    /// of the calls so far, and zero before the first has ended. Nothing is refused because of it.
    pub fn expected(&self, prompt_bytes: usize) -> Usage {
        let mean = self.chain().find_map(|budget| {
            let Spent { usage, reports } = &*budget.lock();
            (*reports > 0.0).then(|| (usage.output_tokens / reports, usage.cost / reports))
        });
        let (output_tokens, cost) = mean.unwrap_or_default();
        #[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
        let input_tokens = prompt_bytes as f64 / BYTES_PER_TOKEN;
        Usage {
            calls: 1.0,
            input_tokens,
            output_tokens,
            cost,
        }
    }

    /// Returns true if so many tokens are left, and so much of the cost.
    pub fn has_room(&self, expected: &Usage) -> bool {
        let fits = |most: Option<f64>, used: f64, more: f64| most.is_none_or(|most| used + more <= most);
        self.chain().all(|budget| {
            let (limits, spent) = (budget.0.limits, budget.spent());
            fits(limits.max_tokens, spent.tokens(), expected.tokens())
                && fits(limits.max_cost, spent.cost, expected.cost)
        })
    }

    /// Checks that a level below is allowed.
    ///
    /// # Errors
    /// [`Exhausted::Depth`] if it is not allowed.
    pub fn may_recurse(&self) -> Result<(), Exhausted> {
        self.chain()
            .find_map(|budget| {
                let most = budget.0.limits.max_depth?;
                (self.0.depth - budget.0.depth >= most).then_some(Err(Exhausted::Depth(most)))
            })
            .unwrap_or(Ok(()))
    }

    /// The amounts that are left.
    pub fn left(&self, now: f64) -> BudgetLeft {
        let mut left = BudgetLeft::default();
        let lower = |left: &mut Option<f64>, most: Option<f64>, used: f64| {
            let here = most.map(|most| (most - used).max(0.0));
            *left = match (*left, here) {
                (Some(left), Some(here)) => Some(left.min(here)),
                (left, here) => left.or(here),
            };
        };
        for budget in self.chain() {
            let (limits, spent) = (budget.0.limits, budget.spent());
            lower(&mut left.calls, limits.max_calls, spent.calls);
            lower(&mut left.tokens, limits.max_tokens, spent.tokens());
            lower(&mut left.cost, limits.max_cost, spent.cost);
            lower(&mut left.time, limits.max_time, now - budget.0.began_at);
            lower(&mut left.depth, limits.max_depth, self.0.depth - budget.0.depth);
        }
        left
    }

    /// The time at which the budget ends, if its time is limited.
    pub fn expires_at(&self) -> Option<f64> {
        self.chain()
            .filter_map(|budget| Some(budget.0.began_at + budget.0.limits.max_time?))
            .reduce(f64::min)
    }

    /// The exhausted limit of this node. Calls are not checked.
    fn exhausted(&self, now: f64) -> Option<Exhausted> {
        let (limits, spent) = (self.0.limits, self.spent());
        let over = |most: Option<f64>, used: f64| most.filter(|most| used >= *most);
        over(limits.max_time, now - self.0.began_at)
            .map(Exhausted::Time)
            .or_else(|| over(limits.max_tokens, spent.tokens()).map(Exhausted::Tokens))
            .or_else(|| over(limits.max_cost, spent.cost).map(Exhausted::Cost))
    }

    /// The limit of time that is over, if one is.
    pub fn overdue(&self, now: f64) -> Option<Exhausted> {
        self.chain().find_map(|budget| {
            let most = budget.0.limits.max_time?;
            (now - budget.0.began_at >= most).then_some(Exhausted::Time(most))
        })
    }

    fn chain(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |budget| budget.0.parent.as_ref())
    }

    fn lock(&self) -> MutexGuard<'_, Spent> {
        // A panic in another thread cannot leave half-written numbers, so a poisoned lock is safe to use.
        self.0.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Budget {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { limits, depth, .. } = &*self.0;
        write!(formatter, "Budget({:?} of {limits:?}, depth {depth})", self.spent())
    }
}

impl fmt::Display for BudgetLeft {
    /// Writes the rest as text for a model: `3 model calls, 1200 tokens, 12 s`.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.calls.map(|calls| format!("{calls} model calls")),
            self.tokens.map(|tokens| format!("{tokens} tokens")),
            self.cost.map(|cost| format!("cost {cost:.4}")),
            self.time.map(|ms| format!("{:.0} s", ms / 1_000.0)),
            self.depth.map(|depth| format!("{depth} levels of recursion")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        formatter.write_str(if parts.is_empty() { "no limits" } else { "" })?;
        formatter.write_str(&parts.join(", "))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn limits(max_calls: f64) -> BudgetLimits {
        BudgetLimits {
            max_calls: Some(max_calls),
            ..BudgetLimits::default()
        }
    }

    fn one_beyond(most: f64) -> Exhausted {
        let (made, more) = (most, 1.0);
        Exhausted::Calls { made, more, most }
    }

    #[test]
    fn what_a_child_spends_is_spent_in_all_that_it_belongs_to() {
        let root = Budget::new(limits(3.0), 0.0);
        let child = root.child(limits(2.0), 0.0);
        assert_eq!(child.admit(0.0), Ok(()));
        assert_eq!(child.admit(0.0), Ok(()));
        assert_eq!(child.admit(0.0), Err(one_beyond(2.0)));
        assert_eq!(root.admit(0.0), Ok(()));
        assert_eq!(root.admit(0.0), Err(one_beyond(3.0)));
        assert_eq!((root.spent().calls, child.spent().calls), (3.0, 2.0));
    }

    #[test]
    fn a_refused_call_is_counted_nowhere() {
        let root = Budget::new(limits(1.0), 0.0);
        let child = root.child(BudgetLimits::default(), 0.0);
        assert_eq!(root.admit(0.0), Ok(()));
        assert_eq!(child.admit(0.0), Err(one_beyond(1.0)));
        assert_eq!(child.spent().calls, 0.0);
    }

    #[test]
    fn a_call_that_is_counted_above_is_counted_once_in_all() {
        let root = Budget::new(limits(5.0), 0.0);
        let own = root.scope(limits(1.0), 0.0);
        root.admit(0.0).unwrap();
        own.admit_here(0.0).unwrap();
        assert_eq!((root.spent().calls, own.spent().calls), (1.0, 1.0));
        assert_eq!(own.admit_here(0.0), Err(one_beyond(1.0)));
        assert_eq!((root.spent().calls, own.spent().calls), (1.0, 1.0));
    }

    #[test]
    fn of_several_calls_all_are_counted_or_none() {
        let root = Budget::new(limits(5.0), 0.0);
        let child = root.child(limits(9.0), 0.0);
        assert_eq!(child.admit_all(3, 0.0), Ok(()));
        let (made, more, most) = (3.0, 3.0, 5.0);
        assert_eq!(child.admit_all(3, 0.0), Err(Exhausted::Calls { made, more, most }));
        assert_eq!((root.spent().calls, child.spent().calls), (3.0, 3.0));
        assert_eq!(child.admit_all(2, 0.0), Ok(()));
        assert_eq!(child.go_on(0.0), Ok(()));
    }

    #[test]
    fn tokens_cost_and_time_refuse_the_next_call() {
        let all = BudgetLimits {
            max_tokens: Some(100.0),
            max_cost: Some(0.5),
            max_time: Some(1_000.0),
            ..BudgetLimits::default()
        };
        let usage = |tokens, cost| Usage {
            output_tokens: tokens,
            cost,
            ..Usage::default()
        };
        let budget = Budget::new(all, 0.0);
        budget.charge(&usage(100.0, 0.0));
        assert_eq!(budget.admit(0.0), Err(Exhausted::Tokens(100.0)));
        let budget = Budget::new(all, 0.0);
        budget.charge(&usage(0.0, 0.7));
        assert_eq!(budget.admit(0.0), Err(Exhausted::Cost(0.5)));
        let budget = Budget::new(all, 500.0);
        assert_eq!(budget.admit(1_499.0), Ok(()));
        assert_eq!(budget.admit(1_500.0), Err(Exhausted::Time(1_000.0)));
        assert_eq!(budget.expires_at(), Some(1_500.0));
    }

    #[test]
    fn calls_are_expected_to_use_what_their_prompts_and_the_replies_so_far_say() {
        let all = BudgetLimits {
            max_tokens: Some(100.0),
            max_cost: Some(4.0),
            ..BudgetLimits::default()
        };
        let root = Budget::new(all, 0.0);
        assert_eq!((root.expected(80).tokens(), root.expected(80).cost), (20.0, 0.0));
        for output_tokens in [4.0, 8.0] {
            root.charge(&Usage {
                input_tokens: 14.0,
                output_tokens,
                cost: 1.5,
                ..Usage::default()
            });
            root.charge(&Usage::default());
        }
        let scope = root.scope(BudgetLimits::default(), 0.0);
        assert_eq!((scope.expected(80).tokens(), scope.expected(80).cost), (26.0, 1.5));
        let room = |input_tokens, cost| {
            scope.has_room(&Usage {
                input_tokens,
                cost,
                ..Usage::default()
            })
        };
        assert_eq!([room(60.0, 1.0), room(61.0, 0.0), room(0.0, 1.5)], [true, false, false]);
    }

    #[test]
    fn depth_is_counted_from_where_it_is_limited() {
        let root = Budget::new(BudgetLimits::default(), 0.0);
        let deep = BudgetLimits {
            max_depth: Some(2.0),
            ..BudgetLimits::default()
        };
        let limited = root.child(BudgetLimits::default(), 0.0).scope(deep, 0.0);
        let below = limited.child(BudgetLimits::default(), 0.0);
        assert_eq!(below.may_recurse(), Ok(()));
        assert_eq!(below.left(0.0).depth, Some(1.0));
        let bottom = below.child(BudgetLimits::default(), 0.0);
        assert_eq!(bottom.may_recurse(), Err(Exhausted::Depth(2.0)));
    }

    #[test]
    fn rubbish_that_is_reported_makes_no_room() {
        let budget = Budget::new(limits(1.0), 0.0);
        for bad in [f64::NAN, -5.0, f64::NEG_INFINITY] {
            budget.charge(&Usage {
                calls: bad,
                input_tokens: bad,
                output_tokens: bad,
                cost: bad,
            });
        }
        assert_eq!(budget.spent(), Usage::default());
    }

    proptest! {
        /// Checks that no sequence of calls and children passes a limit on its way up.
        #[test]
        fn no_limit_is_exceeded(root in 0u8..20, children in prop::collection::vec((0u8..10, 0u8..12, 1u8..4), 1..8)) {
            let root_limit = f64::from(root);
            let root = Budget::new(limits(root_limit), 0.0);
            for (limit, batches, size) in children {
                let child = root.child(limits(f64::from(limit)), 0.0);
                let batch = || child.admit_all(u32::from(size), 0.0).is_ok();
                let admitted = (0..batches).filter(|_| batch()).count() * usize::from(size);
                prop_assert!(admitted <= usize::from(limit));
                prop_assert_eq!(child.spent().calls, admitted as f64);
            }
            prop_assert!(root.spent().calls <= root_limit);
            prop_assert_eq!(root.left(0.0).calls, Some(root_limit - root.spent().calls));
        }
    }
}
