package main

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// grants creates the child grant for each Grant with admin: true. Depending on the spec, another child is waiting,
// invalid or rejected.
const grants = `
apiVersion: platform.example.com/v1alpha1
kind: Blueprint
metadata: {name: grants.GROUP}
spec:
  type:
    group: GROUP
    version: v1
    kind: Grant
    schema:
      type: object
      properties:
        spec:
          type: object
          properties:
            admin: {type: boolean}
            held: {type: boolean, default: false}
            divisor: {type: integer, default: 1}
            name: {type: string, default: other}
  resources:
    - id: base
      readyWhen: ["!self.spec.held"]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-base"}
        data: {quotient: "${string(10 / self.spec.divisor)}"}
    - id: late
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-${self.spec.name}"}
        data: {quotient: "${base.data.quotient}"}
    - id: grant
      includeWhen: [self.spec.admin]
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-grant"}
`

// An excluded resource is deleted regardless of the state of other resources.
func TestExcludedResource_IsPrunedWhileOthersAreNotReady(t *testing.T) {
	a := newAPI(t)
	startServing(t, a.cluster.Kubeconfig())
	a.apply(grants)
	a.waitBlueprint("grants", is("Accepted", "True"), is("Serving", "True"))
	for name, test := range map[string]struct {
		metadata, spec string
		status         string // of the Ready condition
		words          []string
		stays          bool
	}{
		"others ready":    {"", "admin: false", "True", nil, false},
		"another waiting": {"", "admin: false, held: true", "False", []string{"Waiting"}, false},
		"another invalid": {"", "admin: false, divisor: 0", "False", []string{"Invalid", "division by zero"},
			false},
		"another rejected": {"", "admin: false, name: Not_A_Name", "False", []string{"Rejected"}, false},
		"expansion budget exhausted": {", annotations: {platform.example.com/allowance: '0'}", "admin: false", "False",
			[]string{"Invalid", "allowance"}, false},
		"includeWhen fails": {"", "", "False", []string{"Invalid", "includeWhen"}, true},
		"included again":    {"", "admin: true, held: true", "False", []string{"Waiting"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			a := *a
			a.T = t
			instance := strings.ReplaceAll(name, " ", "-")
			if i := strings.Index(instance, "includeWhen"); i >= 0 {
				instance = "include-fails"
			}
			text := "{apiVersion: GROUP/v1, kind: Grant, metadata: {name: " + instance
			a.apply(text + "}, spec: {admin: true}}")
			a.wait("GROUP/v1", "Grant", instance, is("Ready", "True"))
			before, err := a.get("v1", "ConfigMap", instance+"-grant")
			if err != nil {
				t.Fatal(err)
			}
			a.apply(text + test.metadata + "}, spec: {" + test.spec + "}}")
			if !test.stays {
				a.waitGone("v1", "ConfigMap", instance+"-grant")
			}
			a.wait("GROUP/v1", "Grant", instance, is("Ready", test.status, test.words...))
			now, err := a.get("v1", "ConfigMap", instance+"-grant")
			if test.stays && (err != nil || now.GetUID() != before.GetUID()) {
				t.Errorf("got grant %v, %v", now, err)
			}
			if !test.stays && !apierrors.IsNotFound(err) {
				t.Errorf("the grant was created again: %v, %v", now, err)
			}
		})
	}
}

// While no replica is running, a tenant gives an excluded child the annotation of an included one.
func TestExcludedResource_IsPrunedDespiteItsAnnotation(t *testing.T) {
	a := newAPI(t)
	p := startServing(t, a.cluster.Kubeconfig())
	a.apply(grants)
	a.apply("{apiVersion: GROUP/v1, kind: Grant, metadata: {name: g}, spec: {admin: true}}")
	a.wait("GROUP/v1", "Grant", "g", is("Ready", "True"))
	p.kill()
	a.apply("{apiVersion: v1, kind: ConfigMap, metadata: {name: g-grant, annotations: {platform.example.com/resource: " +
		"base}}}")
	a.apply("{apiVersion: GROUP/v1, kind: Grant, metadata: {name: g}, spec: {admin: false, divisor: 0}}")
	startServing(t, a.cluster.Kubeconfig())
	a.waitGone("v1", "ConfigMap", "g-grant")
	a.wait("GROUP/v1", "Grant", "g", is("Ready", "False", "division by zero"))
}

// An excluded resource without a child causes no requests.
func TestExcludedResource_WithoutChildSendsNoRequests(t *testing.T) {
	a := newAPI(t)
	kubeconfig, proxy := a.proxied()
	p := startServing(t, kubeconfig, append(localMetrics, "--resync-period", "1s")...)
	a.apply(grants)
	a.apply("{apiVersion: GROUP/v1, kind: Grant, metadata: {name: g}, spec: {admin: false, held: true}}")
	a.wait("GROUP/v1", "Grant", "g", is("Ready", "False", "Waiting"))
	waitUntilQuiet(t, func() int { return writes(proxy) })
	before, reconciled := len(proxy.Calls()), p.reconciles(a.group)
	eventually(t, func() error {
		if now := p.reconciles(a.group); now < reconciled+2 {
			return fmt.Errorf("the instance was reconciled %d times, want at least 2 resyncs after %d", now, reconciled)
		}
		return nil
	})
	for _, c := range proxy.Calls()[before:] {
		if c.Verb != "watch" && (c.Resource == "configmaps" || c.Resource == "grants") {
			t.Errorf("a resync caused a request: %+v", c)
		}
	}
}

// reconciles returns the number of reconciles of types in an API group, according to the metrics.
func (p *process) reconciles(group string) (total int) {
	p.Helper()
	_, body := p.request(flagMetrics, "/metrics")
	for text := range strings.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(text), "} ")
		if !strings.HasPrefix(name, "dynamiccontroller_reconciles_total{") || !strings.Contains(name, `group="`+group+`"`) {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil {
			p.Fatal(err)
		}
		total += n
	}
	return total
}
