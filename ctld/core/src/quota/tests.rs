use super::*;
use crate::gpu_share::GPU_UNITS;
use proptest::prelude::*;

fn charge_of(amounts: &[(&str, u64)]) -> Charge {
    amounts.iter().map(|(name, amount)| (name.parse().unwrap(), *amount)).collect()
}

fn limits(amounts: &[(&str, u64)]) -> Limits {
    amounts.iter().map(|(name, amount)| (name.parse().unwrap(), *amount)).collect()
}

fn jobs(n: u64) -> Charge {
    charge_of(&[("jobs", n)])
}

fn refusal(limits: &Limits, used: &Charge, charge: &Charge) -> Exceeded {
    decide(limits, used.clone(), &[charge]).answers.remove(0).unwrap_err()
}

#[test]
fn what_fits_is_accepted_to_the_last_and_no_further() {
    let decision = decide(&limits(&[("jobs", 10)]), jobs(3), &[&jobs(5), &jobs(3), &jobs(2), &jobs(1)]);
    let refused = |used, asked| Err(Exceeded { resource: Resource::Jobs, limit: 10, used, asked });
    assert_eq!(decision.answers, [Ok(()), refused(8, 3), Ok(()), refused(10, 1)]);
    assert_eq!(decision.used, jobs(10));
}

#[test]
fn the_first_limit_in_order_is_named() {
    let order = ["jobs", "cpus", "mem", "disk", "gpus", "gpus:a100", "atoms"];
    let all = limits(&order.map(|name| (name, 0)));
    for from in 0..order.len() {
        let asked: Vec<(&str, u64)> = order[from..].iter().map(|name| (*name, 1)).collect();
        let refused = refusal(&all, &Charge::default(), &charge_of(&asked));
        assert_eq!(refused.resource.to_string(), order[from]);
    }
}

#[test]
fn a_refusal_says_use_limit_and_what_was_asked() {
    let two = limits(&[("gpus", 2 * GPU_UNITS)]);
    let sevenths = |n| charge_of(&[("gpus", n * GPU_UNITS / 7)]);
    let error = refusal(&two, &sevenths(13), &sevenths(2));
    assert_eq!(error.to_string(), "1 6/7 of at most 2 gpus in use; 2/7 more asked");
    let fits = decide(&two, sevenths(13), &[&sevenths(1)]);
    assert_eq!(fits.answers, [Ok(())], "thirteen sevenths and one are two");
}

#[test]
fn a_limit_set_below_the_use_refuses_only_what_takes_more_of_it() {
    let limits = limits(&[("gpus", GPU_UNITS), ("cpus", 4)]);
    let used = charge_of(&[("gpus", 8 * GPU_UNITS), ("cpus", 1)]);
    assert_eq!(decide(&limits, used.clone(), &[&charge_of(&[("cpus", 3)])]).answers, [Ok(())]);
    assert_eq!(refusal(&limits, &used, &charge_of(&[("gpus", 1)])).used, 8 * GPU_UNITS);
}

#[test]
fn without_limits_what_cannot_be_counted_is_still_refused() {
    let most = |n| charge_of(&[("mem", n)]);
    let charges = [most(2), most(1), most(u64::MAX), most(1)];
    let decision = decide(&Limits::default(), most(AMOUNT_MAX - 1), &charges.each_ref());
    let refused = |used, asked| Err(Exceeded { resource: Resource::MemMib, limit: AMOUNT_MAX, used, asked });
    assert_eq!(
        decision.answers,
        [refused(AMOUNT_MAX - 1, 2), Ok(()), refused(AMOUNT_MAX, u64::MAX), refused(AMOUNT_MAX, 1)]
    );
}

const NAMES: [&str; 4] = ["jobs", "cpus", "gpus:a100", "atoms"];

proptest! {
    /// Against a model on plain numbers: one charge after the other is accepted exactly if it passes no limit, and a
    /// refusal tells the truth about the first it would pass.
    #[test]
    fn a_batch_is_decided_in_order_and_exactly(
        most in prop::array::uniform4(prop::option::of(0u64..12)), before in prop::array::uniform4(0u64..8),
        charges in prop::collection::vec(prop::array::uniform4(0u64..5), 0..12),
    ) {
        let named = |amounts: &[u64; 4]| -> Vec<(&str, u64)> { NAMES.into_iter().zip(*amounts).collect() };
        let set: Vec<(&str, u64)> = NAMES.into_iter().zip(most).filter_map(|(name, most)| Some((name, most?))).collect();
        let asked: Vec<Charge> = charges.iter().map(|amounts| charge_of(&named(amounts))).collect();
        let decision = decide(&limits(&set), charge_of(&named(&before)), &asked.iter().collect::<Vec<_>>());
        let mut sums = before;
        for (asked, answer) in charges.iter().zip(&decision.answers) {
            let over = |i: &usize| asked[*i] > 0 && most[*i].is_some_and(|most| sums[*i] + asked[*i] > most);
            match (0..4).find(over) {
                None => {
                    prop_assert_eq!(answer, &Ok(()));
                    (0..4).for_each(|i| sums[i] += asked[i]);
                }
                Some(i) => {
                    let refused = answer.clone().unwrap_err();
                    prop_assert_eq!(refused.resource.to_string(), NAMES[i]);
                    prop_assert_eq!((Some(refused.limit), refused.used, refused.asked), (most[i], sums[i], asked[i]));
                }
            }
        }
        prop_assert_eq!(decision.used, charge_of(&named(&sums)));
    }
}
