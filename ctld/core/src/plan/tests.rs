use super::*;
use proptest::prelude::*;

fn node(id: i64, cpus: i64, mem: i64, gpus: &[&str]) -> NodeFree {
    NodeFree {
        id,
        name: format!("node{id}"),
        pool_id: 1,
        amounts: Amounts::new(
            Amount { free: cpus, total: cpus },
            Amount { free: mem, total: mem },
            Amount::default(),
        ),
        until_us: None,
        maintenance_us: None,
        gpus_free: gpus
            .iter()
            .enumerate()
            .map(|(i, model)| GpuFree { id: id * 100 + i as i64, model: (*model).to_owned(), until_us: None })
            .collect(),
        gpu_models: gpus.iter().map(|m| (*m).to_owned()).collect(),
    }
}

#[test]
fn a_job_keeps_away_from_where_it_failed_and_says_so() {
    let nodes = [node(1, 4, 100, &[]), node(2, 4, 100, &[])];
    let avoiding = Shape { avoid: vec![1], ..shape(1, 10, 0) };
    let (shares, _) = place(&mut nodes.to_vec(), &avoiding, None).unwrap();
    assert_eq!(shares[0].node_id, 2);
    let why = why_not(&nodes[..1], &avoiding, None).unwrap();
    assert_eq!(why.message, "waits for another node: an attempt of it failed on node1");
}

fn shape(cpus: i64, mem: i64, gpus: u32) -> Shape {
    Shape {
        pool_id: 1,
        node_count: 1,
        cpus,
        mem_mib: mem,
        disk_mib: 0,
        lasts_us: Some(600_000_000),
        gpus,
        gpu_type: None,
        exclusive: false,
        mem_all: false,
        avoid: Vec::new(),
    }
}

fn job(id: i64, shape: Shape) -> Request {
    Request {
        job_id: id,
        tenant_id: 1,
        charged: Charge::default(),
        shape,
        pending: IndexSet::one(0),
        throttle_left: None,
    }
}

fn plan(nodes: Vec<NodeFree>, queue: &[Request]) -> Plan {
    let mut planner = Planner::new(nodes, 1000);
    planner.consider(queue);
    planner.finish()
}

#[test]
fn the_queues_order_decides_who_gets_the_last_place() {
    let plan = plan(vec![node(1, 1, 1024, &[])], &[job(7, shape(1, 10, 0)), job(3, shape(1, 10, 0))]);
    assert_eq!(plan.placements.iter().map(|p| p.job_id).collect::<Vec<_>>(), [7]);
    assert_eq!(plan.waits.iter().map(|w| w.0).collect::<Vec<_>>(), [3]);
}

#[test]
fn what_does_not_fit_says_both_numbers() {
    let plan =
        plan(vec![node(1, 8, 1024, &["a100-80gb"; 2])], &[job(1, shape(1, 10, 2)), job(2, shape(1, 10, 1))]);
    let why = &plan.waits[0].1;
    assert_eq!(why.reason, Reason::Unschedulable);
    assert_eq!(why.message, "asks for 1 gpus; node1 has 0 free of 2");
    assert_eq!((why.checks[0].asked, why.checks[0].free, why.checks[0].total), (1, 0, 2));
}

#[test]
fn what_can_never_fit_is_said_to_be_so() {
    let plan = plan(vec![node(1, 4, 1024, &[]), node(2, 4, 1024, &[])], &[job(1, shape(8, 10, 0))]);
    assert!(plan.waits[0].1.message.contains("0 of the 2 nodes"), "{}", plan.waits[0].1.message);
}

#[test]
fn cpu_work_leaves_gpu_nodes_alone_and_gpu_work_fills_the_fuller_node() {
    let mut full = node(1, 8, 1024, &["a100-80gb"; 4]);
    full.gpus_free.truncate(2);
    let nodes = vec![full, node(2, 8, 1024, &["a100-80gb"; 4]), node(3, 8, 1024, &[])];
    let plan = plan(nodes, &[job(1, shape(1, 10, 0)), job(2, shape(1, 10, 2))]);
    assert_eq!(plan.placements[0].shares[0].node_id, 3);
    assert_eq!(plan.placements[1].shares[0].node_id, 1);
}

#[test]
fn a_gpu_type_matches_whole_names_and_leading_parts_only() {
    assert!(model_matches("a100-80gb", "A100"));
    assert!(model_matches("a100-80gb", "a100-80gb"));
    assert!(!model_matches("a100-80gb", "a10"));
    assert!(!model_matches("a100-80gb", "a100-40gb"));
}

#[test]
fn several_nodes_are_given_together_or_not_at_all() {
    let mut two = shape(4, 10, 0);
    two.node_count = 2;
    let both = plan(vec![node(1, 4, 1024, &[]), node(2, 4, 1024, &[])], &[job(1, two.clone())]);
    assert_eq!(both.placements[0].shares.len(), 2);
    let one =
        plan(vec![node(1, 4, 1024, &[]), node(2, 3, 1024, &[])], &[job(1, two), job(2, shape(4, 10, 0))]);
    assert_eq!(one.placements.iter().map(|p| p.job_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn an_exclusive_job_waits_for_an_empty_node_and_takes_all_of_it() {
    let mut whole = shape(1, 10, 0);
    whole.exclusive = true;
    let mut busy = node(1, 8, 1024, &[]);
    busy.amounts.cpus.free = 7;
    let plan = plan(vec![busy, node(2, 4, 512, &["h100"])], &[job(1, whole)]);
    let share = &plan.placements[0].shares[0];
    assert_eq!((share.node_id, share.cpus, share.mem_mib, share.gpu_ids.len()), (2, 4, 512, 1));
}

#[test]
fn a_throttle_lets_only_so_many_tasks_start_and_is_named() {
    let request =
        Request { pending: "0-9".parse().unwrap(), throttle_left: Some(2), ..job(1, shape(1, 10, 0)) };
    let plan = plan(vec![node(1, 8, 1024, &[])], &[request]);
    assert_eq!(plan.placements.iter().map(|p| p.task).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(plan.waits[0].1.reason, Reason::ArrayThrottle);
}

#[test]
fn a_million_tasks_cost_no_more_than_what_fits() {
    let request =
        Request { pending: "0-999999".parse().unwrap(), throttle_left: None, ..job(1, shape(1, 1, 0)) };
    let mut planner = Planner::new(vec![node(1, 1_000_000, 1_000_000_000, &[])], 100);
    planner.consider(&[request]);
    let plan = planner.finish();
    assert!(plan.more);
    assert_eq!(plan.placements.len(), 100);
}

prop_compose! {
    fn any_node()(id in 1i64..6, cpus in 0i64..9, mem in 0i64..2000, gpus in 0usize..5) -> NodeFree {
        node(id, cpus, mem, &vec!["a100-80gb"; gpus])
    }
}

prop_compose! {
    fn any_request()(
        cpus in 1i64..6, mem in 1i64..900, gpus in 0u32..4, nodes in 1u32..3, exclusive: bool, tasks in 1u32..4,
        throttle in prop::option::of(0u32..3),
    ) -> Request {
        let mut shape = shape(cpus, mem, gpus);
        shape.node_count = nodes;
        shape.exclusive = exclusive;
        Request { pending: IndexSet::from_ranges([(0, tasks - 1)]), throttle_left: throttle, ..job(0, shape) }
    }
}

proptest! {
    /// Whatever the nodes and the queue: nothing is given twice, nothing over what is free, and every job that is not
    /// wholly placed has a reason.
    #[test]
    fn no_plan_gives_what_is_not_there(
        nodes in prop::collection::vec(any_node(), 0..6),
        queue in prop::collection::vec(any_request(), 0..12),
    ) {
        let nodes: Vec<NodeFree> =
            nodes.into_iter().enumerate().map(|(i, n)| node(i as i64, n.amounts.cpus.free, n.amounts.mem_mib.free, &vec!["a100-80gb"; n.gpu_models.len()])).collect();
        let queue: Vec<Request> =
            queue.into_iter().enumerate().map(|(i, r)| Request { job_id: i as i64, ..r }).collect();
        let plan = plan(nodes.clone(), &queue);
        for node in &nodes {
            let shares: Vec<&Share> =
                plan.placements.iter().flat_map(|p| &p.shares).filter(|s| s.node_id == node.id).collect();
            prop_assert!(shares.iter().map(|s| s.cpus).sum::<i64>() <= node.amounts.cpus.free);
            prop_assert!(shares.iter().map(|s| s.mem_mib).sum::<i64>() <= node.amounts.mem_mib.free);
            let mut gpus: Vec<i64> = shares.iter().flat_map(|s| s.gpu_ids.clone()).collect();
            let given = gpus.len();
            gpus.sort_unstable();
            gpus.dedup();
            prop_assert_eq!(gpus.len(), given);
            prop_assert!(gpus.iter().all(|id| node.gpus_free.iter().any(|g| g.id == *id)));
        }
        for request in &queue {
            let placed = plan.placements.iter().filter(|p| p.job_id == request.job_id).count() as u64;
            let waits = plan.waits.iter().filter(|w| w.0 == request.job_id).count();
            prop_assert_eq!(waits, usize::from(placed < request.pending.len()), "one reason iff something is left");
            if let Some(throttle) = request.throttle_left {
                prop_assert!(placed <= u64::from(throttle));
            }
            for placement in plan.placements.iter().filter(|p| p.job_id == request.job_id) {
                prop_assert_eq!(placement.shares.len(), request.shape.node_count as usize);
            }
        }
    }
}

#[test]
fn a_gpu_booked_for_later_takes_what_is_done_by_then_and_says_why_it_takes_no_more() {
    let mut one = node(1, 8, 1024, &["a100-80gb"]);
    one.gpus_free[0].until_us = Some(600_000_000);
    assert_eq!(why_not(&[one.clone()], &shape(1, 10, 1), None), None, "600 s fit in 600 s");
    let longer = Shape { lasts_us: Some(600_000_001), ..shape(1, 10, 1) };
    let why = why_not(&[one.clone()], &longer, None).unwrap();
    assert_eq!(
        why.message,
        "asks for 1 gpus; node1 has 0 free of 1; 1 more is idle but booked within 00:10:00"
    );
    assert!(
        why_not(&[one], &Shape { lasts_us: None, ..shape(1, 10, 1) }, None).is_some(),
        "without end is never done"
    );
}

#[test]
fn what_ends_with_its_reservation_takes_no_job_that_would_outlast_it() {
    let mut inside = node(1, 8, 1024, &[]);
    inside.until_us = Some(500_000_000);
    let why = why_not(&[inside], &shape(1, 10, 0), None).unwrap();
    assert_eq!(
        (why.checks[0].resource.as_str(), why.checks[0].asked, why.checks[0].free),
        ("seconds", 600, 500)
    );
}

fn limited(resource: crate::quota::Resource, limit: u64) -> HashMap<i32, Allowance> {
    let limits = [(resource, limit)].into_iter().collect();
    HashMap::from([(1, Allowance { tenant: "physics".into(), limits, used: Charge::default() })])
}

fn plan_within(nodes: Vec<NodeFree>, queue: &[Request], allowances: HashMap<i32, Allowance>) -> Plan {
    let mut planner = Planner::new(nodes, 1000).within(allowances);
    planner.consider(queue);
    planner.finish()
}

#[test]
fn what_leaves_the_model_open_gets_one_that_the_quota_has_room_for() {
    let no_h100 = || limited(crate::quota::Resource::GpusOf("h100".into()), 0);
    let open = || job(1, shape(1, 10, 1));
    for nodes in [
        vec![node(1, 8, 1024, &["h100-80gb", "a100-40gb"])],
        vec![node(1, 8, 1024, &["h100-80gb"]), node(2, 8, 1024, &["a100-40gb"; 2])],
    ] {
        let last = nodes.last().map(|n| n.id).unwrap();
        let plan = plan_within(nodes, &[open()], no_h100());
        assert_eq!((plan.placements.len(), plan.placements[0].shares[0].node_id), (1, last));
        assert_ne!(plan.placements[0].shares[0].gpu_ids, [100]);
    }
    let other = Request { tenant_id: 2, ..job(2, shape(1, 10, 1)) };
    let plan = plan_within(vec![node(1, 8, 1024, &["h100-80gb"])], &[open(), open(), other], no_h100());
    assert_eq!(plan.placements.iter().map(|p| p.job_id).collect::<Vec<_>>(), [2]);
    assert_eq!(plan.waits.len(), 2);
    assert_eq!(plan.waits[0].1.reason, Reason::QuotaExceeded);
    assert_eq!(
        plan.waits[0].1.message,
        "what it would be given is over its quota: tenant \"physics\" has 0 of at most 0 gpus:h100 in use; 1 more asked"
    );
}

#[test]
fn what_a_plan_gives_counts_against_the_quota_of_the_next() {
    let whole = |id| {
        let charged = crate::quota::given(1, 10, 0, std::iter::empty());
        Request { charged, ..job(id, Shape { exclusive: true, ..shape(1, 10, 0) }) }
    };
    let nodes = (1..=3).map(|id| node(id, 8, 1024, &[])).collect();
    let allowances = limited(crate::quota::Resource::Cpus, 14);
    let plan = plan_within(nodes, &[whole(1), whole(2), whole(3)], allowances);
    assert_eq!(plan.placements.len(), 2, "seven CPUs beyond the one that was charged, each");
}
