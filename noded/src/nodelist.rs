//! Node names in Slurm's short form: `n[1-3,7],login`.
//!
//! Only for showing. Numbers of different widths are not joined, so that `n[08-10]` stands for exactly its names.

/// The names as one text; the order is kept, and only neighbours are joined.
pub fn compress(names: &[String]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut at = 0;
    while at < names.len() {
        let (stem, _) = split(&names[at]);
        let run =
            names[at..].iter().take_while(|name| split(name).0 == stem && split(name).1.is_some()).count();
        if run < 2 {
            out.push(names[at].clone());
            at += 1;
            continue;
        }
        let numbers: Vec<&str> = names[at..at + run].iter().filter_map(|name| split(name).1).collect();
        out.push(format!("{stem}[{}]", ranges(&numbers)));
        at += run;
    }
    out.join(",")
}

/// A name's stem and the number it ends in.
fn split(name: &str) -> (&str, Option<&str>) {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match &name[stem.len()..] {
        // Longer numbers are names, not numbers.
        "" => (name, None),
        number if number.len() > 9 => (name, None),
        number => (stem, Some(number)),
    }
}

fn ranges(numbers: &[&str]) -> String {
    let mut out: Vec<String> = Vec::new();
    let mut at = 0;
    while at < numbers.len() {
        let mut end = at;
        while end + 1 < numbers.len() && follows(numbers[end], numbers[end + 1]) {
            end += 1;
        }
        out.push(if end == at {
            numbers[at].to_owned()
        } else {
            format!("{}-{}", numbers[at], numbers[end])
        });
        at = end + 1;
    }
    out.join(",")
}

fn follows(one: &str, next: &str) -> bool {
    let value = |text: &str| text.parse::<u64>().unwrap_or(u64::MAX - 1);
    let padded = |text: &str| text.len() > 1 && text.starts_with('0');
    let same_form = one.len() == next.len() || !(padded(one) || padded(next));
    same_form && value(one) + 1 == value(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_joined_and_widths_kept() {
        for (names, shown) in [
            (&["n1"][..], "n1"),
            (&["n1", "n2", "n3"], "n[1-3]"),
            (&["n1", "n3", "login"], "n[1,3],login"),
            (&["n08", "n09", "n10"], "n[08-10]"),
            (&["n9", "n10"], "n[9-10]"),
            (&["n09", "n010"], "n[09,010]"),
            (&["n3", "n1"], "n[3,1]"),
            (&["a1", "b2"], "a1,b2"),
            (&["gpu-a", "gpu-b"], "gpu-a,gpu-b"),
            (&[], ""),
        ] {
            let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
            assert_eq!(compress(&names), shown);
        }
    }
}
