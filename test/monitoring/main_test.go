package monitoring

import (
	"os"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.uber.org/goleak"
	"sigs.k8s.io/yaml"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// root is the folder of the repository.
const root = "../../"

var promQL = parser.NewParser(parser.Options{})

func read(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// loadRules returns the rules of the manifest, in the format of Prometheus' rule files.
func loadRules(t testing.TB) *rulefmt.RuleGroups {
	t.Helper()
	var manifest struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   any    `json:"metadata"`
		Spec       any    `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(read(t, "monitoring/alerts.yaml"), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.APIVersion != "monitoring.coreos.com/v1" || manifest.Kind != "PrometheusRule" {
		t.Errorf("got the manifest %s %s", manifest.APIVersion, manifest.Kind)
	}
	content, err := yaml.Marshal(manifest.Spec)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(content, false, model.LegacyValidation, promQL, promslog.NewNopLogger())
	for _, err := range errs {
		t.Error(err)
	}
	if t.Failed() {
		t.FailNow()
	}
	return groups
}
