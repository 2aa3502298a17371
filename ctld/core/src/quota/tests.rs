use super::*;
use proptest::prelude::*;

fn gpus(n: u64) -> GpuShare {
    GpuShare::whole(n).unwrap()
}

fn jobs(n: u64) -> Charge {
    Charge { jobs: n, ..Charge::default() }
}

/// A charge for so many whole GPUs.
fn gpus_of(model: Option<&str>, n: u64) -> Charge {
    let gpus_of = model.map(|model| (model.to_owned(), gpus(n))).into_iter().collect();
    Charge { jobs: 1, gpus: gpus(n), gpus_of, atoms: n, ..Charge::default() }
}

fn limit_of(model: &str, n: u64) -> Limits {
    Limits { gpus_of: [(model.to_owned(), gpus(n))].into(), ..Limits::default() }
}

fn refusal(limits: &Limits, used: Charge, charge: Charge) -> Exceeded {
    decide(limits, used, &[charge]).answers.remove(0).unwrap_err()
}

#[test]
fn what_fits_is_accepted_to_the_last_and_no_further() {
    let limits = Limits { jobs: Some(10), ..Limits::default() };
    let decision = decide(&limits, jobs(3), &[jobs(5), jobs(3), jobs(2), jobs(1)]);
    let refused = |used, asked| Err(Exceeded { resource: Resource::Jobs, limit: 10, used, asked });
    assert_eq!(decision.answers, [Ok(()), refused(8, 3), Ok(()), refused(10, 1)]);
    assert_eq!(decision.used, jobs(10));
}

#[test]
fn the_first_limit_in_order_is_named() {
    let limits = Limits { jobs: Some(0), cpus: Some(0), mem_mib: Some(0), ..limit_of("a100", 0) };
    let limits = Limits { gpus: Some(gpus(0)), atoms: Some(0), ..limits };
    let mut charge = Charge { cpus: 1, mem_mib: 1, ..gpus_of(Some("a100-80gb"), 1) };
    let mut first = |take: fn(&mut Charge)| {
        let resource = refusal(&limits, Charge::default(), charge.clone()).resource;
        take(&mut charge);
        resource.to_string()
    };
    let order = [
        first(|c| c.jobs = 0),
        first(|c| c.cpus = 0),
        first(|c| c.mem_mib = 0),
        first(|c| c.gpus = GpuShare::ZERO),
        first(|c| c.gpus_of.clear()),
        first(|c| c.atoms = 0),
    ];
    assert_eq!(order, ["jobs", "cpus", "mem_mib", "gpus", "gpus:a100", "atoms"]);
}

#[test]
fn a_refusal_says_limit_use_and_what_was_asked() {
    let limits = Limits { gpus: Some(gpus(2)), ..Limits::default() };
    let sevenths = |n| Charge { gpus: GpuShare::fraction(n, 7), ..Charge::default() };
    let error = refusal(&limits, sevenths(13), sevenths(2));
    assert_eq!(error.to_string(), "quota allows 2 gpus, 1 6/7 in use, 2/7 asked");
    assert_eq!(
        decide(&limits, sevenths(13), &[sevenths(1)]).answers,
        [Ok(())],
        "thirteen sevenths and one are two"
    );
}

#[test]
fn a_limit_on_a_leading_part_counts_every_model_it_matches() {
    let limits = limit_of("a100", 4);
    let used =
        decide(&limits, Charge::default(), &[gpus_of(Some("a100-40gb"), 2), gpus_of(Some("a100"), 1)]).used;
    let error = refusal(&limits, used.clone(), gpus_of(Some("a100-80gb"), 2));
    assert_eq!(error.to_string(), "quota allows 4 gpus:a100, 3 in use, 2 asked");
    let others = [gpus_of(Some("h100-80gb"), 9), gpus_of(Some("a100-80gb"), 1), gpus_of(None, 9)];
    assert_eq!(decide(&limits, used, &others).answers, [const { Ok(()) }; 3]);
}

#[test]
fn a_job_for_any_model_counts_for_one_when_it_is_placed() {
    let limits = limit_of("h100", 1);
    let (any, placed) = (gpus_of(None, 2), gpus_of(Some("h100-80gb"), 2));
    let used = decide(&limits, Charge::default(), std::slice::from_ref(&any)).used;
    let refused = recharge(&limits, &used, &any, &placed);
    let exceeded = Exceeded {
        resource: Resource::GpusOf("h100".to_owned()),
        limit: gpus(1).units(),
        used: 0,
        asked: gpus(2).units(),
    };
    assert_eq!(refused, Err(RechargeError::Exceeded(exceeded)));
    let elsewhere = gpus_of(Some("a100-80gb"), 2);
    assert_eq!(recharge(&limits, &used, &any, &elsewhere), Ok(elsewhere.clone()));
    assert_eq!(recharge(&limits, &elsewhere, &elsewhere, &any), Ok(any), "back in the queue");
    assert_eq!(recharge(&limits, &Charge::default(), &jobs(1), &jobs(2)), Err(RechargeError::NotInUse));
}

#[test]
fn a_limit_set_below_the_use_refuses_only_what_takes_more_of_it() {
    let limits = Limits { gpus: Some(gpus(1)), cpus: Some(4), ..Limits::default() };
    let used = Charge { cpus: 1, ..gpus_of(None, 8) };
    assert_eq!(decide(&limits, used.clone(), &[Charge { cpus: 3, ..jobs(1) }]).answers, [Ok(())]);
    assert_eq!(refusal(&limits, used.clone(), gpus_of(None, 1)).used, gpus(8).units());
    let fewer = Charge { cpus: 1, ..gpus_of(None, 7) };
    assert_eq!(recharge(&limits, &used, &used, &fewer), Ok(fewer.clone()), "shrinking is always allowed");
}

#[test]
fn without_limits_what_cannot_be_counted_is_still_refused() {
    let most = |n| Charge { mem_mib: n, ..Charge::default() };
    let decision =
        decide(&Limits::default(), most(AMOUNT_MAX - 1), &[most(2), most(1), most(u64::MAX), most(1)]);
    let refused = |used, asked| Err(Exceeded { resource: Resource::MemMib, limit: AMOUNT_MAX, used, asked });
    assert_eq!(
        decision.answers,
        [refused(AMOUNT_MAX - 1, 2), Ok(()), refused(AMOUNT_MAX, u64::MAX), refused(AMOUNT_MAX, 1)]
    );
    let huge = GpuShare::from_units(AMOUNT_MAX);
    let model = |share| Charge { gpus_of: [("a".to_owned(), share)].into(), ..Charge::default() };
    let error = refusal(&Limits::default(), model(huge), model(GpuShare::from_units(1)));
    assert_eq!(error.resource, Resource::GpusOf("a".to_owned()));
}

const MODELS: [Option<&str>; 5] =
    [None, Some("a100"), Some("a100-40gb"), Some("a100-80gb"), Some("h100-80gb")];
const LIMITED: [&str; 3] = ["a100", "a100-80gb", "h100-80gb"];

prop_compose! {
    fn any_charge()(jobs in 0u64..3, cpus in 0u64..5, mem_mib in 0u64..5, atoms in 0u64..3, model in 0usize..5, sevenths in 0u16..9) -> Charge {
        let gpus = GpuShare::fraction(sevenths, 7);
        let gpus_of = MODELS[model].map(|m| (m.to_owned(), gpus)).into_iter().filter(|(_, s)| *s > GpuShare::ZERO).collect();
        Charge { jobs, cpus, mem_mib, gpus, gpus_of, atoms }
    }
}

prop_compose! {
    fn any_limits()(
        jobs in prop::option::of(0u64..12), cpus in prop::option::of(0u64..20), mem_mib in prop::option::of(0u64..20),
        atoms in prop::option::of(0u64..12), gpus in prop::option::of(0u16..40), of in prop::array::uniform3(prop::option::of(0u16..20)),
    ) -> Limits {
        let share = |sevenths| GpuShare::fraction(sevenths, 7);
        let named = LIMITED.iter().zip(of).filter_map(|(name, limit)| Some((name.to_string(), share(limit?))));
        Limits { jobs, cpus, mem_mib, atoms, gpus: gpus.map(share), gpus_of: named.collect() }
    }
}

/// The amounts that limits are set on, in the order in which they refuse, with no look at names: which of the three
/// limits each model counts for is written out.
fn amounts(charge: &Charge) -> [u64; 8] {
    let of = |model: &str| charge.gpus_of.get(model).map_or(0, |share| share.units());
    let a100 = of("a100") + of("a100-40gb") + of("a100-80gb");
    let by_model = [a100, of("a100-80gb"), of("h100-80gb")];
    let [a, b, c] = by_model;
    [charge.jobs, charge.cpus, charge.mem_mib, charge.gpus.units(), a, b, c, charge.atoms]
}

fn most(limits: &Limits) -> [u64; 8] {
    let of = |model: &str| limits.gpus_of.get(model).map_or(u64::MAX, |share| share.units());
    let [a, b, c] = LIMITED.map(of);
    let plain = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let gpus = limits.gpus.map_or(u64::MAX, |share| share.units());
    [plain(limits.jobs), plain(limits.cpus), plain(limits.mem_mib), gpus, a, b, c, plain(limits.atoms)]
}

const NAMES: [&str; 8] =
    ["jobs", "cpus", "mem_mib", "gpus", "gpus:a100", "gpus:a100-80gb", "gpus:h100-80gb", "atoms"];

proptest! {
    /// Against a model on plain numbers: one charge after the other is accepted exactly if it passes no limit, and a
    /// refusal tells the truth about the first it would pass.
    #[test]
    fn a_batch_is_decided_in_order_and_exactly(
        limits in any_limits(), before in prop::collection::vec(any_charge(), 0..3),
        charges in prop::collection::vec(any_charge(), 0..12),
    ) {
        let used = decide(&Limits::default(), Charge::default(), &before).used;
        let mut sums = amounts(&used);
        let began_at = sums;
        let decision = decide(&limits, used, &charges);
        prop_assert_eq!(decision.answers.len(), charges.len());
        let most = most(&limits);
        for (charge, answer) in charges.iter().zip(&decision.answers) {
            let asked = amounts(charge);
            match (0..8).find(|i| asked[*i] > 0 && sums[*i] + asked[*i] > most[*i]) {
                None => {
                    prop_assert_eq!(answer, &Ok(()));
                    (0..8).for_each(|i| sums[i] += asked[i]);
                }
                Some(i) => {
                    let refused = answer.clone().unwrap_err();
                    prop_assert_eq!(refused.resource.to_string(), NAMES[i]);
                    prop_assert_eq!((refused.limit, refused.used, refused.asked), (most[i], sums[i], asked[i]));
                }
            }
        }
        prop_assert_eq!(amounts(&decision.used), sums);
        prop_assert!((0..8).all(|i| sums[i] <= most[i].max(began_at[i])), "no limit is passed");
    }

    #[test]
    fn what_is_given_back_leaves_what_was_there(before in prop::collection::vec(any_charge(), 0..4), charge in any_charge()) {
        let used = decide(&Limits::default(), Charge::default(), &before).used;
        let with = decide(&Limits::default(), used.clone(), std::slice::from_ref(&charge)).used;
        prop_assert_eq!(with.minus(&charge), Some(used));
    }

    /// A change is refused exactly if something that grows would pass its limit.
    #[test]
    fn a_change_holds_only_its_growth_against_limits(
        limits in any_limits(), others in prop::collection::vec(any_charge(), 0..3), from in any_charge(), to in any_charge(),
    ) {
        let all = |charges: &[Charge]| decide(&Limits::default(), Charge::default(), charges).used;
        let rest = all(&others);
        let used = all(&[rest.clone(), from.clone()]);
        let after = all(&[rest, to.clone()]);
        let (most, from_n, to_n, after_n) = (most(&limits), amounts(&from), amounts(&to), amounts(&after));
        let refused = (0..8).any(|i| to_n[i] > from_n[i] && after_n[i] > most[i]);
        let answer = recharge(&limits, &used, &from, &to);
        prop_assert_eq!(answer.is_err(), refused);
        prop_assert!(answer.is_err() || answer == Ok(after));
    }
}
