use super::*;

#[test]
fn a_clone_of_which_a_peer_says_nothing_has_failed() {
    let failed = |message: &str| {
        CloneResult::Error(ApiError {
            kind: ErrorKind::Host,
            message: message.to_owned(),
            hint: None,
        })
    };
    let told = |count| {
        let said = vec![failed("full"); count];
        let numbered = by_number(vec![3, 5], said).into_iter();
        let numbered = numbered.map(|(number, result)| match result {
            CloneResult::Error(error) => (number, error.message),
            CloneResult::Vm(vm) => panic!("{vm:?}"),
        });
        numbered.collect::<Vec<_>>()
    };
    let of = |number, text: &str| (number, text.to_owned());
    assert_eq!(told(1), [of(3, "full"), of(5, "it told of 1 of 2 clones")]);
    assert_eq!(told(3), [of(3, "full"), of(5, "full")]);
}
