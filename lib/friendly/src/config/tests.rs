use super::*;

#[test]
fn nothing_said_is_table_1_but_for_what_is_congestion() {
    let config = Config::parse("").expect("fine");
    assert_eq!(config, Config::default());
    let monitor = &config.monitor;
    assert_eq!(monitor.period(), Duration::from_secs(5));
    assert_eq!(monitor.window(), 12);
    assert_eq!((monitor.ewma, monitor.threshold), (0.8, 1.25));
    let differs = (monitor.average, monitor.least);
    assert_eq!(differs, (Average::Periods, Least::Asked));
    assert_eq!(config.threads.start, 10);
    assert!(
        matches!(config.threads.law, LawConfig::Steady { add, divide, .. } if (add, divide) == (1.0, 1.5))
    );
    assert!(
        matches!(config.rate.law, LawConfig::Aimd { add, divide } if (add, divide) == (0.1, 1.5))
    );
}

#[test]
fn what_is_written_can_be_read() {
    let mut config = Config::default();
    config.threads.exempt.push("sshd".to_owned());
    config.threads.law = LawConfig::Binomial {
        add: 1.0,
        cut: 0.5,
        k: 0.5,
        l: 0.5,
    };
    config.monitor.signals = Some(vec![Signal::Vct, Signal::MemoryPressure]);
    let text = toml::to_string(&config).expect("written");
    assert_eq!(Config::parse(&text).expect("read"), config);
}

#[test]
fn a_file_of_people_is_understood() {
    let text = "\
[monitor]
signals = [\"vct\", \"memory-pressure\"]
[threads]
start = 4
law = { kind = \"quick\", add = 1, divide = 1.5, growth = 2, most = 8 }
";
    let config = Config::parse(text).expect("fine");
    assert_eq!(config.threads.law.build().name(), "quick");
    assert_eq!(config.monitor.counting().len(), 2);
}

#[test]
fn each_bad_number_is_refused_by_name() {
    for (text, named) in [
        ("[monitor]\newma = 0", "monitor.ewma"),
        ("[monitor]\newma = nan", "monitor.ewma"),
        ("[monitor]\nthreshold = 0.5", "monitor.threshold"),
        ("[monitor]\nwindow-s = 1", "monitor.window-s"),
        (
            "[monitor]\ntick-ms = 900\nperiod-s = 0.5\nwindow-s = 5",
            "monitor.tick-ms",
        ),
        ("[threads]\nstart = 0", "threads.start"),
        ("[threads]\nstart = 9\nmost = 8", "threads.start"),
        (
            "[threads.law]\nkind = \"aimd\"\nadd = 1\ndivide = 1",
            "law.divide",
        ),
        (
            "[threads.law]\nkind = \"binomial\"\nadd = 1\ncut = 1\nk = 0\nl = 0",
            "law.k + law.l",
        ),
        ("[rate]\nfloor-hz = 2", "rate.ceiling-hz"),
    ] {
        match Config::parse(text) {
            Err(ConfigError::Range { field, .. }) => assert_eq!(field, named, "{text}"),
            other => panic!("{text}: {other:?}"),
        }
    }
    let none = Config::parse("[monitor]\nsignals = []");
    assert!(matches!(none, Err(ConfigError::NoSignal)));
}

#[test]
fn words_nobody_knows_are_refused() {
    for text in [
        "[monitor]\ngama = 0.3",
        "[threads.law]\nkind = \"aimd\"\nadd = 1\ndivide = 2\nk = 1",
        "[threads.law]\nkind = \"luck\"",
        "speed = 3",
    ] {
        let refused = Config::parse(text);
        assert!(matches!(refused, Err(ConfigError::Syntax(_))), "{text}");
    }
}
