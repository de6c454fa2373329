package blueprint

import "testing"

func TestSuggest(t *testing.T) {
	names := []string{"availableReplicas", "observedGeneration", "readyReplicas", "replicas"}
	for name, want := range map[string]string{
		"Replicas": "; did you mean replicas?",
		"replica":  "; did you mean replicas?",
		"ready":    "; did you mean readyReplicas?",
		"Avail":    "; did you mean availableReplicas?",
		"re":       "",
		"phase":    "",
	} {
		if got := suggest(name, names); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	several := []string{"volumeClaims", "volumeDevices", "volumeMounts", "volumeNames"}
	if got := suggest("volume", several[:2]); got != "; did you mean volumeClaims or volumeDevices?" {
		t.Errorf("got %q", got)
	}
	if got := suggest("vol", several); got != "; did you mean volumeClaims or volumeDevices or volumeMounts?" {
		t.Errorf("got %q", got)
	}
}
