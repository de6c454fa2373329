package monitoring

import (
	"strings"
	"testing"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	_ "github.com/prometheus/prometheus/discovery/kubernetes" // registers kubernetes_sd_configs
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"sigs.k8s.io/yaml"
)

// Prometheus must accept the scrape configuration in docs/operations.md, and scrape only the metrics port of the Pods.
func TestScrapeConfigOfTheDocsSelectsTheMetricsPort(t *testing.T) {
	loaded, err := config.Load(indentedBlock(t, "docs/operations.md", "scrape_configs:"), promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	scrapes, err := loaded.GetScrapeConfigs()
	if err != nil || len(scrapes) != 1 {
		t.Fatalf("got %d scrape configurations and the error %v", len(scrapes), err)
	}
	var deployment struct {
		Spec struct {
			Template struct {
				Spec struct {
					Containers []struct {
						Ports []struct {
							Name string `json:"name"`
						} `json:"ports"`
					} `json:"containers"`
				} `json:"spec"`
			} `json:"template"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(read(t, "install/kustomize/deployment.yaml"), &deployment); err != nil {
		t.Fatal(err)
	}
	ports := deployment.Spec.Template.Spec.Containers[0].Ports
	kept := 0
	for _, port := range ports {
		target := labels.NewBuilder(labels.FromStrings("__meta_kubernetes_pod_container_port_name", port.Name))
		if relabel.ProcessBuilder(target, scrapes[0].RelabelConfigs...) {
			kept++
			if port.Name != "metrics" {
				t.Errorf("the port %s is scraped", port.Name)
			}
		}
	}
	if kept != 1 || len(ports) < 2 {
		t.Errorf("%d of %d ports are scraped, want the metrics port", kept, len(ports))
	}
}

// indentedBlock returns the indented code block of a document that begins with a line.
func indentedBlock(t *testing.T, path, first string) string {
	t.Helper()
	const indent = "    "
	_, rest, found := strings.Cut(string(read(t, path)), "\n\n"+indent+first+"\n")
	if !found {
		t.Fatalf("%s has no code block that begins with %q", path, first)
	}
	block, _, _ := strings.Cut(rest, "\n\n")
	return first + "\n" + strings.ReplaceAll("\n"+block, "\n"+indent, "\n")
}
