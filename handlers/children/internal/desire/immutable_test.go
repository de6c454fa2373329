package desire

import "testing"

func TestCheckOnImmutable(t *testing.T) {
	claim := Spec{Object: newObject("v1", "PersistentVolumeClaim", "", "a"), OnImmutable: Recreate}
	const isRetained = "OnImmutable must not be Recreate, because the child is retained"
	const holdsData = "OnImmutable must not be Recreate, because deleting a PersistentVolumeClaim deletes data"
	unknown := configMap(func(s *Spec) { s.OnImmutable = "x" })
	keptClaim := claim
	keptClaim.OnImmutable = Fail
	for situation, test := range map[string]struct {
		spec Spec
		want string
	}{
		"not set":                      {configMap(), ""},
		"fails":                        {configMap(func(s *Spec) { s.OnImmutable = Fail }), ""},
		"is recreated":                 {configMap(recreatedOnImmutable), ""},
		"an unknown value":             {unknown, `OnImmutable "x": must be Fail or Recreate`},
		"is retained, and recreated":   {configMap(retained, recreatedOnImmutable), isRetained},
		"holds data, and fails":        {keptClaim, ""},
		"holds data, and is recreated": {claim, holdsData},
	} {
		t.Run(situation, func(t *testing.T) {
			want := ""
			if test.want != "" {
				want = test.spec.Object.GetKind() + " a: " + test.want
			}
			got := ""
			set, err := New(newInput(t), stages([]Spec{test.spec}))
			if err != nil {
				got = err.Error()
			} else if recreate := test.spec.OnImmutable == Recreate; set.Stages[0][0].Ready.Recreate != recreate {
				t.Errorf("the child is recreated: %t", !recreate)
			}
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
