package monitoring

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/config"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	"sigs.k8s.io/yaml"
)

// Prometheus must accept the scrape configuration in docs/operations.md, and scrape only the metrics port of the Pods.
func TestScrapeConfigOfTheDocsSelectsTheMetricsPort(t *testing.T) {
	snippet, discovery := withoutDiscovery(t, indentedBlock(t, "docs/operations.md", "scrape_configs:"))
	if want := `[{"namespaces":{"names":["dynamic-controller-system"]},"role":"pod"}]`; discovery != want {
		t.Errorf("got the service discovery %s, want %s", discovery, want)
	}
	loaded, err := config.Load(snippet, promslog.NewNopLogger())
	if err != nil {
		t.Fatal(err)
	}
	scrapes, err := loaded.GetScrapeConfigs()
	if err != nil {
		t.Fatal(err)
	}
	client := scrapes[0].HTTPClientConfig
	if scrapes[0].Scheme != "https" || client.TLSConfig.InsecureSkipVerify ||
		client.TLSConfig.ServerName != "dynamic-controller-metrics.dynamic-controller-system.svc" ||
		client.Authorization == nil || client.Authorization.CredentialsFile == "" {
		t.Errorf("targets must be verified, and must receive a token: got the scheme %s and %+v", scrapes[0].Scheme,
			client)
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

// withoutDiscovery removes the Kubernetes service discovery from a configuration with one job, and returns it in JSON.
// Parsing it requires another package of Prometheus, whose dependencies this module avoids.
func withoutDiscovery(t *testing.T, text string) (configuration, discovery string) {
	t.Helper()
	var all map[string][]map[string]any
	if err := yaml.UnmarshalStrict([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	if len(all["scrape_configs"]) != 1 {
		t.Fatalf("got %d jobs, want one", len(all["scrape_configs"]))
	}
	job := all["scrape_configs"][0]
	removed, err1 := json.Marshal(job["kubernetes_sd_configs"])
	delete(job, "kubernetes_sd_configs")
	rest, err2 := yaml.Marshal(all)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return string(rest), string(removed)
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
