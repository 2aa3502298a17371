use super::*;
use crate::gpu_share::GPU_UNITS;
use proptest::prelude::*;

fn of(name: &str) -> &'static Model {
    model(name, None).unwrap_or_else(|error| panic!("{error}"))
}

fn profile(model: &'static Model, name: &str) -> &'static Profile {
    model.profile(name.parse().unwrap()).unwrap_or_else(|error| panic!("{error}"))
}

fn at(name: &str, start: u8) -> Instance {
    Instance { start, profile: name.parse().unwrap() }
}

fn even(_: &Profile) -> u32 {
    1
}

fn names(model: &'static Model) -> String {
    model.offers().replace(',', "")
}

mod table {
    use super::*;

    /// The names as NVIDIA's guide and `nvidia-smi` list them for each model.
    #[test]
    fn each_model_offers_what_its_driver_lists() {
        for (model, want) in [
            ("a30", "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb"),
            ("a100-40gb", "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
            ("a100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
            ("h100-80gb", "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
            ("h100-94gb", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
            ("h100-96gb", "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb"),
            ("h200", "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
            ("b200", "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb"),
        ] {
            assert_eq!(names(of(model)), want, "{model}");
        }
        assert_eq!(models().count(), 8);
    }

    /// Size, most instances and starts of every row, in the order of the names above.
    #[test]
    fn every_profile_has_its_size_count_and_starts() {
        const ANY: &[u8] = &[0, 1, 2, 3, 4, 5, 6];
        let seven: [(u8, u8, &[u8]); 7] = [
            (1, 7, ANY),
            (1, 1, ANY),
            (2, 4, &[0, 2, 4, 6]),
            (2, 3, &[0, 2, 4]),
            (4, 2, &[0, 4]),
            (4, 1, &[0]),
            (8, 1, &[0]),
        ];
        let a30: [(u8, u8, &[u8]); 5] =
            [(1, 4, &[0, 1, 2, 3]), (1, 1, &[0, 1, 2, 3]), (2, 2, &[0, 2]), (2, 1, &[0, 2]), (4, 1, &[0])];
        for model in models() {
            let rows: Vec<(u8, u8, &[u8])> =
                model.profiles.iter().map(|p| (p.memory_slices, p.count_max, p.starts)).collect();
            assert_eq!(
                rows,
                if model.name == "a30" { a30.to_vec() } else { seven.to_vec() },
                "{}",
                model.name
            );
            let slices = (model.compute_slices, model.memory_slices);
            assert_eq!(slices, if model.name == "a30" { (4, 4) } else { (7, 8) });
        }
    }

    /// GiB as `nvidia-smi mig -lgip` showed them, rounded to hundredths there.
    #[test]
    fn memory_is_what_was_seen_and_never_more() {
        for (model, seen) in [
            ("a30", "1g.6gb 5.81 1g.6gb+me 5.81 2g.12gb 11.69 2g.12gb+me 11.69 4g.24gb 23.44"),
            ("a100-40gb", "1g.5gb 4.75 1g.10gb 9.62 2g.10gb 9.62 3g.20gb 19.5 4g.20gb 19.5 7g.40gb 39.25"),
            ("a100-80gb", "1g.10gb 9.6 1g.20gb 19.5 2g.20gb 19.5 3g.40gb 39.25 4g.40gb 39.25 7g.80gb 78.5"),
            ("h100-80gb", "1g.10gb 9.75 1g.20gb 19.62 2g.20gb 19.62 3g.40gb 39.5 4g.40gb 39.5 7g.80gb 79.25"),
            ("h100-94gb", "4g.47gb 46.38 7g.94gb 93.12"),
            ("h200", "1g.18gb 16.0 2g.35gb 32.5 7g.141gb 140.0"),
        ] {
            let words: Vec<&str> = seen.split(' ').collect();
            for pair in words.chunks(2) {
                let profile = profile(of(model), pair[0]);
                let gib: f64 = pair[1].parse().unwrap();
                let off = gib - f64::from(profile.mem_mib) / 1024.0;
                assert!(profile.mem_seen && (-0.006..=0.101).contains(&off), "{model} {}: {off}", pair[0]);
            }
        }
    }

    /// The estimate for what was not seen must hold for what was.
    #[test]
    fn the_estimate_of_memory_is_below_all_that_was_seen() {
        let mut seen = 0;
        for (model, profile) in models().flat_map(|m| m.profiles.iter().map(move |p| (m, p))) {
            let slices = u32::from(profile.memory_slices);
            let estimate = model.mem_mib / u32::from(model.memory_slices) * slices * 9 / 10;
            assert!(profile.mem_mib >= estimate, "{} {}", model.name, profile.name);
            assert_eq!(profile.mem_seen, profile.mem_mib != estimate);
            seen += u32::from(profile.mem_seen);
        }
        assert_eq!(seen, 5 + 3 * 7 + 2 + 4);
    }

    #[test]
    fn multiprocessors_are_those_seen() {
        let sms = |model| of(model).profiles.iter().map(|p| p.sms.unwrap_or(0)).collect::<Vec<_>>();
        assert_eq!(sms("a30"), [14, 14, 28, 28, 56]);
        assert_eq!(sms("a100-40gb"), [14, 14, 14, 28, 42, 56, 98]);
        assert_eq!(sms("a100-80gb"), [14, 14, 14, 28, 42, 56, 98]);
        assert_eq!(sms("h100-80gb"), [16, 16, 26, 32, 60, 64, 132]);
        assert_eq!(sms("h100-94gb"), [16, 16, 26, 32, 60, 64, 132]);
        assert_eq!(sms("h100-96gb"), [0; 7]);
        assert_eq!(sms("h200"), [16, 16, 0, 32, 0, 0, 132]);
        assert_eq!(sms("b200"), [0; 7]);
    }
}

mod finding {
    use super::*;

    #[test]
    fn a_model_is_found_by_what_people_and_drivers_call_it() {
        for (name, want) in [
            ("a100-80gb", "a100-80gb"),
            ("A100_80G", "a100-80gb"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA A100 80GB PCIe", "a100-80gb"),
            ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
            ("A100-SXM4-40GB", "a100-40gb"),
            ("NVIDIA H100 80GB HBM3", "h100-80gb"),
            ("NVIDIA H100 NVL", "h100-94gb"),
            ("NVIDIA GH200 480GB", "h100-96gb"),
            ("NVIDIA H20", "h100-96gb"),
            ("NVIDIA H200", "h200"),
            ("NVIDIA H200 NVL", "h200"),
            ("h200-141gb", "h200"),
            ("NVIDIA B200", "b200"),
            ("NVIDIA A30", "a30"),
            ("a30-24gb", "a30"),
        ] {
            assert_eq!(model(name, None).map(|m| m.name), Ok(want), "{name}");
        }
        assert!(models().all(|m| model(m.name, None) == Ok(m)));
    }

    #[test]
    fn memory_decides_what_the_name_leaves_open() {
        for (name, mib, want) in [
            ("a100", 40 * 1024, "a100-40gb"),
            ("a100", 81_920, "a100-80gb"),
            ("NVIDIA H100 PCIe", 81_559, "h100-80gb"),
            ("h100", 80 * 1024, "h100-80gb"),
            ("h100", 95_830, "h100-94gb"),
            ("h100", 97_871, "h100-96gb"),
            ("h200", 141 * 1024, "h200"),
        ] {
            assert_eq!(model(name, Some(mib)).map(|m| m.name), Ok(want), "{name} {mib}");
        }
        let error = model("a100", None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "GPU model \"a100\" may be any of a100-40gb, a100-80gb: name one of them"
        );
        assert!(matches!(model("a100", Some(64 * 1024)), Err(ModelError::Ambiguous { .. })));
    }

    #[test]
    fn what_cannot_be_divided_is_no_model() {
        for name in [
            "",
            "t4",
            "nvidia",
            "GRID A100-10C",
            "A100-SXM4-80GB MIG 1g.10gb",
            "a100-64gb",
            "NVIDIA H20-3e",
            "NVIDIA GH200 144G HBM3e",
            "NVIDIA GB200",
            "h100-80gb-a100",
            "80gb",
        ] {
            let error = model(name, None).unwrap_err();
            assert_eq!(error, ModelError::Unknown(name.to_owned()));
            let text = error.to_string();
            assert!(text.contains(&format!("{name:?}")) && text.contains("a30, a100-40gb"), "{text}");
        }
        assert!(model("NVIDIA H20", Some(143_771)).is_err(), "the H20 with 141 GB has other profiles");
    }

    #[test]
    fn a_profile_the_model_lacks_is_refused_with_what_it_offers() {
        let error = of("a100-40gb").profile("1g.20gb".parse().unwrap()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a100-40gb has no MIG profile 1g.20gb: it offers 1g.5gb, 1g.5gb+me, 1g.10gb, 2g.10gb, 3g.20gb, \
             4g.20gb, 7g.40gb"
        );
    }

    #[test]
    fn the_smallest_profile_that_holds_so_much_takes_least_of_the_gpu() {
        let holding = |m: &str, mib| of(m).smallest_holding(mib).map(|p| p.name.to_string());
        for (mib, want) in [
            (0, "1g.10gb"),
            (9984, "1g.10gb"),
            (9985, "1g.20gb"),
            (20_096, "1g.20gb"),
            (20_097, "3g.40gb"),
            (40_449, "7g.80gb"),
            (81_152, "7g.80gb"),
        ] {
            assert_eq!(holding("h100-80gb", mib).as_deref(), Ok(want), "{mib}");
        }
        assert_eq!(holding("a30", 6000).as_deref(), Ok("2g.12gb"));
        let error = of("h100-80gb").smallest_holding(81_153).unwrap_err().to_string();
        assert_eq!(
            error,
            "no MIG profile of h100-80gb holds 81153 MiB: the largest, 7g.80gb, holds 81152 MiB"
        );
    }
}

mod shares {
    use super::*;

    #[test]
    fn a_share_is_the_larger_of_compute_and_memory() {
        let shares = |name| {
            let m = of(name);
            m.profiles.iter().map(|p| m.share(p).to_string()).collect::<Vec<_>>()
        };
        assert_eq!(shares("a100-80gb"), ["1/7", "1/7", "1/4", "2/7", "1/2", "4/7", "1"]);
        assert_eq!(shares("a30"), ["1/4", "1/4", "1/2", "1/2", "1"]);
    }

    #[test]
    fn before_the_model_is_known_the_most_counts() {
        let most = |name: &str, models: &[&str]| {
            share_max(models.iter().map(|m| of(m)), name.parse().unwrap()).map(|share| share.to_string())
        };
        assert_eq!(most("1g.10gb", &["a100-80gb", "h100-80gb"]).as_deref(), Some("1/7"));
        assert_eq!(most("1g.10gb", &["h100-80gb", "a100-40gb", "a30"]).as_deref(), Some("1/4"));
        assert_eq!(most("1g.10gb", &["a30", "h200"]), None);
        assert_eq!(most("1g.10gb", &[]), None);
    }

    #[test]
    fn every_share_is_exact() {
        for (m, p) in models().flat_map(|m| m.profiles.iter().map(move |p| (m, p))) {
            let units = m.share(p).units();
            let (c, n) = (u64::from(p.name.compute_slices), u64::from(p.memory_slices));
            let exact = |part: u64, of: u8| units * u64::from(of) == part * GPU_UNITS;
            assert!(exact(c, m.compute_slices) || exact(n, m.memory_slices), "{} {}", m.name, p.name);
        }
    }

    /// What the tenants of one GPU are charged together is never less than the part of it that they have.
    #[test]
    fn no_layout_is_charged_less_than_it_takes() {
        let mut extremes = (u64::MAX, 0);
        for m in models() {
            for layout in layout::maximal(m) {
                let profiles: Vec<_> = layout.iter().map(|i| m.profile(i.profile).unwrap()).collect();
                let charged: u64 = profiles.iter().map(|p| m.share(p).units()).sum();
                let compute: u64 = profiles.iter().map(|p| u64::from(p.name.compute_slices)).sum();
                let memory: u64 = profiles.iter().map(|p| u64::from(p.memory_slices)).sum();
                assert!(
                    charged * u64::from(m.compute_slices) >= compute * GPU_UNITS,
                    "{} {layout:?}",
                    m.name
                );
                assert!(charged * u64::from(m.memory_slices) >= memory * GPU_UNITS, "{} {layout:?}", m.name);
                extremes = (extremes.0.min(charged), extremes.1.max(charged));
            }
        }
        // What the doc comment of `share` says of a full GPU.
        let shown =
            (GpuShare::from_units(extremes.0).to_string(), GpuShare::from_units(extremes.1).to_string());
        assert_eq!(shown, ("25/28".to_owned(), "1 3/28".to_owned()));
    }
}

mod layouts {
    use super::*;

    #[test]
    fn known_layouts_are_legal() {
        let check = |m: &str, instances: &[Instance]| layout::check(of(m), instances);
        let ones: Vec<Instance> = (0..7).map(|start| at("1g.10gb", start)).collect();
        assert_eq!(check("a100-80gb", &ones), Ok(()));
        assert_eq!(check("a100-80gb", &[at("4g.40gb", 0), at("3g.40gb", 4)]), Ok(()));
        assert_eq!(check("a100-80gb", &[at("3g.40gb", 4), at("1g.10gb+me", 3), at("2g.20gb", 0)]), Ok(()));
        assert_eq!(check("a30", &[at("2g.12gb", 2), at("1g.6gb", 0), at("1g.6gb+me", 1)]), Ok(()));
        assert_eq!(check("a30", &[]), Ok(()));
    }

    #[test]
    fn an_illegal_layout_is_refused_by_its_rule_with_both_sides() {
        let a100 = |instances: &[Instance]| layout::check(of("a100-80gb"), instances).unwrap_err();
        let (one, two) = (at("1g.10gb", 3), at("2g.20gb", 2));
        assert_eq!(a100(&[one, two]), LayoutError::Overlap(one, two));
        assert_eq!(a100(&[one, one]), LayoutError::Overlap(one, one));
        let error = a100(&[at("3g.40gb", 3)]);
        assert_eq!(error.to_string(), "a 3g.40gb cannot start at memory slice 3: it starts at 0, 4");
        assert!(a100(&[at("1g.10gb", 7)]).to_string().contains("starts at 0, 1, 2, 3, 4, 5, 6"));
        let media = (at("1g.10gb+me", 0), at("1g.10gb+me", 1));
        assert_eq!(a100(&[media.0, media.1]), LayoutError::Media(media.0, media.1));
        assert!(matches!(a100(&[at("1g.5gb", 0)]), LayoutError::Profile(_)));
        let a30 = [at("2g.12gb+me", 0), at("1g.6gb+me", 2)];
        let error = layout::check(of("a30"), &a30).unwrap_err();
        assert_eq!(
            error.to_string(),
            "2g.12gb+me@0 and 1g.6gb+me@2 both have media engines, which a GPU has once"
        );
    }

    /// No model of the table gets as far as these two rules, so one is made up that does.
    #[test]
    fn too_many_of_a_profile_and_too_many_compute_slices_are_refused() {
        const fn of_one_slice(name: ProfileName, count_max: u8) -> Profile {
            Profile {
                name,
                memory_slices: 1,
                starts: &[0, 1, 2, 3],
                count_max,
                mem_mib: 1,
                mem_seen: true,
                sms: None,
            }
        }
        static PROFILES: [Profile; 2] =
            [of_one_slice(ProfileName::plain(1, 1), 2), of_one_slice(ProfileName::plain(2, 1), 4)];
        static MADE_UP: Model = Model {
            name: "made-up",
            memory_gb: 4,
            compute_slices: 3,
            memory_slices: 4,
            mem_mib: 4,
            profiles: &PROFILES,
        };
        let check = |names: &[&str]| {
            let layout: Vec<Instance> = names.iter().zip(0..).map(|(name, start)| at(name, start)).collect();
            layout::check(&MADE_UP, &layout)
        };
        assert_eq!(check(&["1g.1gb", "1g.1gb"]), Ok(()));
        let profile = ProfileName::plain(1, 1);
        assert_eq!(check(&["1g.1gb"; 3]), Err(LayoutError::Count { profile, asked: 3, max: 2 }));
        assert_eq!(check(&["1g.1gb", "2g.1gb"]), Ok(()));
        assert_eq!(check(&["2g.1gb", "2g.1gb"]), Err(LayoutError::Compute { asked: 4, max: 3 }));
    }

    /// Every subset of places is tried; the ones that are legal and cannot grow must be the ones enumerated.
    #[test]
    fn the_maximal_layouts_of_an_a30_are_all_and_only_those() {
        let m = of("a30");
        let places: Vec<Instance> = m
            .profiles
            .iter()
            .flat_map(|p| p.starts.iter().map(|s| Instance { start: *s, profile: p.name }))
            .collect();
        let chosen = |bits: u32| -> Vec<Instance> {
            let mut layout: Vec<Instance> = places
                .iter()
                .enumerate()
                .filter(|(i, _)| bits >> i & 1 == 1)
                .map(|(_, place)| *place)
                .collect();
            layout.sort();
            layout
        };
        let legal = |bits: u32| layout::check(m, &chosen(bits)).is_ok();
        let mut want: Vec<Vec<Instance>> = (0..1u32 << places.len())
            .filter(|bits| {
                legal(*bits) && (0..places.len()).all(|i| bits >> i & 1 == 1 || !legal(bits | 1 << i))
            })
            .map(chosen)
            .collect();
        let mut found = layout::maximal(m);
        want.sort();
        found.sort();
        assert_eq!(found, want);
        assert!(found.contains(&vec![at("2g.12gb", 0), at("1g.6gb+me", 2), at("1g.6gb", 3)]));
    }

    #[test]
    fn every_maximal_layout_is_legal_and_none_comes_twice() {
        for m in models() {
            let mut found = layout::maximal(m);
            let count = found.len();
            for layout in &found {
                assert_eq!(layout::check(m, layout), Ok(()));
                let room = Room::beside(m, layout).unwrap();
                assert!(m.profiles.iter().all(|p| room.fits_more(p) == 0), "{layout:?}");
            }
            found.sort();
            found.dedup();
            assert_eq!(found.len(), count);
        }
    }

    /// Why `Room` need not count compute slices.
    #[test]
    fn compute_slices_never_run_out_first() {
        for m in models() {
            for layout in layout::maximal(m) {
                let compute: u8 = layout.iter().map(|i| i.profile.compute_slices).sum();
                assert!(compute <= m.compute_slices, "{layout:?}");
            }
        }
    }
}

mod rooms {
    use super::*;

    /// Places one after another, as jobs come.
    fn placed(m: &str, names: &[&str]) -> Vec<Option<u8>> {
        let mut room = Room::empty(of(m));
        let place = |name: &&str| {
            let profile = profile(room.model(), name);
            let start = room.choose(profile, even);
            if let Some(start) = start {
                room = room.with(profile, start);
            }
            start
        };
        names.iter().map(place).collect()
    }

    #[test]
    fn ones_go_where_the_driver_puts_them() {
        let starts: Vec<Option<u8>> = [6, 4, 5, 0, 1, 2, 3].map(Some).into_iter().chain([None]).collect();
        assert_eq!(placed("a100-80gb", &["1g.10gb"; 8]), starts);
    }

    #[test]
    fn the_only_place_of_a_large_one_is_kept_while_another_serves() {
        assert_eq!(placed("a100-80gb", &["3g.40gb", "4g.40gb"]), [Some(4), Some(0)]);
        assert_eq!(placed("a100-80gb", &["2g.20gb", "1g.20gb", "4g.40gb"]), [Some(4), Some(6), Some(0)]);
        assert_eq!(placed("a100-80gb", &["1g.10gb", "1g.10gb", "1g.10gb", "4g.40gb"]).last(), Some(&Some(0)));
        assert_eq!(placed("a30", &["1g.6gb", "2g.12gb", "1g.6gb"]), [Some(0), Some(2), Some(1)]);
    }

    #[test]
    fn demand_decides_between_starts() {
        let room = Room::empty(of("a100-80gb"));
        let one = profile(room.model(), "1g.10gb");
        let demand = |p: &Profile| u32::from(p.name.to_string() == "1g.20gb") * 100 + 1;
        // Every start spoils one place of 1g.20gb, however much that is asked for: the rest decides.
        assert_eq!(room.choose(one, demand), Some(6));
        let only_threes = |p: &Profile| u32::from(p.name.compute_slices == 3);
        assert_eq!(
            room.choose(one, only_threes),
            Some(0),
            "both places of 3g are worth the same: the lowest"
        );
        let used = room.with(one, 0);
        assert_eq!(used.choose(one, only_threes), Some(1), "one place of 3g is spoiled already");
    }

    #[test]
    fn pack_finds_places_where_one_after_another_fails() {
        let names = ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"];
        assert_eq!(placed("a100-80gb", &names).last(), Some(&None));
        let m = of("a100-80gb");
        let profiles: Vec<_> = names.iter().map(|name| profile(m, name)).collect();
        let layout = Room::empty(m).pack(&profiles).expect("they fit together");
        assert_eq!(layout::check(m, &layout), Ok(()));
        assert_eq!(layout.iter().map(|i| i.profile.to_string()).collect::<Vec<_>>(), names);
        assert_eq!(Room::empty(m).pack(&[profiles[3], profiles[3], profiles[0]]), None);
        assert_eq!(Room::empty(m).pack(&[]), Some(vec![]));
    }

    #[test]
    fn what_fits_more_is_counted_beside_what_is_there() {
        let m = of("h100-80gb");
        let more = |instances: &[Instance]| {
            let room = Room::beside(m, instances).unwrap();
            m.profiles.iter().map(|p| room.fits_more(p)).collect::<Vec<_>>()
        };
        assert_eq!(more(&[]), [7, 1, 4, 3, 2, 1, 1]);
        assert_eq!(more(&[at("1g.10gb+me", 6)]), [6, 0, 3, 3, 1, 1, 0]);
        assert_eq!(more(&[at("3g.40gb", 4), at("1g.10gb", 1)]), [3, 1, 1, 1, 0, 0, 0]);
        let booked = Room::empty(m).without(&[Span::sized(0, 1).unwrap(), MEDIA_SPAN]);
        assert_eq!(m.profiles.iter().map(|p| booked.fits_more(p)).collect::<Vec<_>>(), [6, 0, 3, 2, 1, 0, 0]);
        assert_eq!(Room::empty(m).without(&[Span::ALL]).slices_free(), 0);
    }

    /// A legal layout of any model: some of the places of a maximal one.
    fn any_layout() -> impl Strategy<Value = (&'static Model, Vec<Instance>)> {
        (0usize..8, any::<prop::sample::Index>(), any::<u8>()).prop_map(|(m, layout, keep)| {
            let m = models().nth(m).expect("eight models");
            let all = layout::maximal(m);
            let layout = layout.get(&all);
            let kept =
                layout.iter().enumerate().filter(|(i, _)| keep >> i & 1 == 1).map(|(_, instance)| *instance);
            (m, kept.collect())
        })
    }

    /// The most instances of a profile that can be added, by trying every set of its starts.
    fn most(m: &'static Model, layout: &[Instance], profile: &Profile) -> u32 {
        let sets = 0..1u32 << profile.starts.len();
        let added = |set: u32| {
            let starts = profile.starts.iter().enumerate().filter(move |(i, _)| set >> i & 1 == 1);
            starts.map(|(_, start)| Instance { start: *start, profile: profile.name })
        };
        let legal = |set: &u32| {
            let together: Vec<Instance> = layout.iter().copied().chain(added(*set)).collect();
            layout::check(m, &together).is_ok()
        };
        sets.filter(legal).map(u32::count_ones).max().unwrap_or(0)
    }

    proptest! {
        /// What the book holds of a GPU says as much of its room as the instances themselves.
        #[test]
        fn spans_leave_the_room_that_their_instances_leave((m, layout) in any_layout()) {
            let spans = |i: &Instance| {
                let profile = m.profile(i.profile).unwrap();
                [Some(profile.span_at(i.start)), profile.media().then_some(MEDIA_SPAN)]
            };
            let spans: Vec<Span> = layout.iter().flat_map(spans).flatten().collect();
            prop_assert_eq!(Room::empty(m).without(&spans), Room::beside(m, &layout).unwrap());
        }

        #[test]
        fn a_room_offers_exactly_what_the_layout_rules_allow((m, layout) in any_layout()) {
            let room = Room::beside(m, &layout).unwrap();
            for profile in m.profiles {
                for start in 0..=8 {
                    let mut with = layout.clone();
                    with.push(Instance { start, profile: profile.name });
                    let offered = room.starts(profile).any(|s| s == start);
                    prop_assert_eq!(offered, layout::check(m, &with).is_ok(), "{} at {}", profile.name, start);
                }
                prop_assert_eq!(u32::from(room.fits_more(profile)), most(m, &layout, profile), "{}", profile.name);
                let chosen = room.choose(profile, even);
                prop_assert_eq!(chosen.is_some(), room.starts(profile).next().is_some());
                prop_assert!(chosen.is_none_or(|start| room.starts(profile).any(|s| s == start)));
            }
        }

        /// What was once a layout can be packed again, in whatever order its profiles are named.
        #[test]
        fn pack_places_every_set_that_fits((m, mut layout) in any_layout(), rotate in 0usize..8) {
            if !layout.is_empty() {
                let by = rotate % layout.len();
                layout.rotate_left(by);
            }
            let profiles: Vec<_> = layout.iter().map(|i| m.profile(i.profile).unwrap()).collect();
            let packed = Room::empty(m).pack(&profiles).expect("they fitted before");
            prop_assert_eq!(layout::check(m, &packed), Ok(()));
            let names = |layout: &[Instance]| layout.iter().map(|i| i.profile).collect::<Vec<_>>();
            prop_assert_eq!(names(&packed), names(&layout));
        }
    }
}
