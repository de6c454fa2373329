package desire

import (
	"slices"
	"testing"
)

func TestKeptPaths(t *testing.T) {
	several := func(s *Spec) {
		for _, name := range []string{"immutable", "f", "e", "binaryData"} {
			s.Object.Object[name] = "x"
		}
	}
	for situation, test := range map[string]struct {
		spec Spec
		want []string
		err  string
	}{
		"no fields": {spec: configMap()},
		"fields, in the given order": {
			spec: configMap(keeping("data.b", `data["a.b"]`)), want: []string{".data.b", ".data.a.b"},
		},
		"the whole object": {
			spec: configMap(keeping("*"), several), want: []string{".binaryData", ".data", ".e", ".f", ".immutable"},
		},
		"the whole object, without fields": {
			spec: configMap(keeping("*"), func(s *Spec) { delete(s.Object.Object, "data") }),
		},
		"a label of others": {
			spec: configMap(keeping(`metadata.labels["example.com/parent"]`)),
			want: []string{".metadata.labels.example.com/parent"},
		},
		"a label of the Reconciler": {
			spec: configMap(keeping(`metadata.labels["platform.example.com/parent"]`)),
			err: `ConfigMap a: KeepExisting: path "metadata.labels[\"platform.example.com/parent\"]": ` +
				"labels and annotations of the Reconciler cannot be kept",
		},
		"an annotation of the Reconciler": {
			spec: configMap(keeping(`metadata.annotations["platform.example.com/x"]`)),
			err: `ConfigMap a: KeepExisting: path "metadata.annotations[\"platform.example.com/x\"]": ` +
				"labels and annotations of the Reconciler cannot be kept",
		},
		"a path that is not one": {
			spec: configMap(keeping("kind")), err: `ConfigMap a: KeepExisting: path "kind": kind cannot be kept`,
		},
		"a child that is recreated": {
			spec: configMap(keeping("data.key"), recreatedOnImmutable),
			err:  "ConfigMap a: KeepExisting must not be set with OnImmutableRecreate, which would lose the values",
		},
		"no field of a child that is recreated": {spec: configMap(keeping(), recreatedOnImmutable)},
	} {
		t.Run(situation, func(t *testing.T) {
			set, err := New(newInput(t), stages([]Spec{test.spec}))
			if err != nil || test.err != "" {
				if err == nil || err.Error() != test.err {
					t.Errorf("got %v, want %s", err, test.err)
				}
				return
			}
			var got []string
			for _, path := range set.Stages[0][0].Ready.Kept {
				got = append(got, path.String())
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}
