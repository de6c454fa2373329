package lastwrites

import (
	"maps"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestVersions_SurviveEncoding(t *testing.T) {
	for _, v := range []Versions{nil, {
		{Resource: "configmaps"}: 7, {Group: "apps.example.com", Resource: "widgets"}: 18446744073709551615,
	}} {
		got, err := Parse(v.String())
		if err != nil || !maps.Equal(got, v) {
			t.Errorf("got %v, error %v, want %v", got, err, v)
		}
	}
	for _, s := range []string{"x", "[]", `{"configmaps":"7"}`, `{"configmaps":-1}`} {
		if v, err := Parse(s); err == nil {
			t.Errorf("%s: got %v and no error", s, v)
		}
	}
}

func TestFrom_ReturnsWhatTheContextCarries(t *testing.T) {
	if v := From(t.Context()); v != nil {
		t.Errorf("got %v", v)
	}
	want := Versions{schema.GroupResource{Resource: "configmaps"}: 7}
	if v := From(With(t.Context(), want)); !maps.Equal(v, want) {
		t.Errorf("got %v, want %v", v, want)
	}
}

func TestNumber_RejectsVersionsWithoutAnOrder(t *testing.T) {
	for version, want := range map[string]uint64{"12": 12, "": 0, "0": 0, "abc": 0, "-1": 0} {
		if n, ok := Number(version); n != want || ok != (want > 0) {
			t.Errorf("%q: got %d, %t", version, n, ok)
		}
	}
}

// VERSIONING.md lists the formats. The replica that reads the versions can have another version than the writer.
func TestFormats_AreReadAndWrittenAsBefore(t *testing.T) {
	const text = `{"configmaps":7,"widgets.apps.example.com":18446744073709551615}`
	want := Versions{{Resource: "configmaps"}: 7, {Group: "apps.example.com", Resource: "widgets"}: 18446744073709551615}
	if v, err := Parse(text); err != nil || !maps.Equal(v, want) || want.String() != text {
		t.Errorf("got %v, %v, and wrote %s", v, err, want)
	}
}
