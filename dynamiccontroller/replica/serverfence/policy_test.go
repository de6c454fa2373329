package serverfence

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestObjects_MissingOptionsAreReported(t *testing.T) {
	complete := Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: "u"}
	if _, _, err := Objects(complete); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Options){
		"Name":           func(o *Options) { o.Name = "" },
		"LeaseNamespace": func(o *Options) { o.LeaseNamespace = "" },
		"LeaseName":      func(o *Options) { o.LeaseName = "" },
		"Username":       func(o *Options) { o.Username = "" },
	} {
		o := complete
		change(&o)
		if _, _, err := Objects(o); err == nil || !strings.Contains(err.Error(), "Options."+name+" is empty") {
			t.Errorf("%s: got error %v", name, err)
		}
		if err := Probe(t.Context(), nil, o); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("Probe, %s: got error %v", name, err)
		}
	}
}

func TestObjects_ManyShardsRequireResources(t *testing.T) {
	o := Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: "u", Shards: 16}
	if _, _, err := Objects(o); err != nil {
		t.Error(err)
	}
	o.Shards = 32
	if _, _, err := Objects(o); err == nil || !strings.Contains(err.Error(), "Options.Shards is 32") ||
		!strings.Contains(err.Error(), "Options.Resources") || !strings.Contains(err.Error(), "960µs") {
		t.Errorf("got error %v", err)
	}
	o.Resources = []schema.GroupResource{{Group: "example.com", Resource: "widgets"}}
	if _, _, err := Objects(o); err != nil {
		t.Error(err)
	}
	for _, invalid := range []string{"", "widgets/status"} {
		o.Resources = []schema.GroupResource{{Group: "example.com", Resource: "widgets"}, {Resource: invalid}}
		if _, _, err := Objects(o); err == nil || !strings.Contains(err.Error(), "Options.Resources[1]") {
			t.Errorf("resource %q: got error %v", invalid, err)
		}
	}
}

func TestObjects_RulesOfTheResources(t *testing.T) {
	for name, test := range map[string]struct {
		resources []schema.GroupResource
		want      string
	}{
		"all by default": {
			nil, "* */* [CREATE UPDATE DELETE]; pods/exec,pods/attach,pods/portforward [CONNECT]",
		},
		"one, and ConfigMaps for the probe": {
			[]schema.GroupResource{{Group: "example.com", Resource: "widgets"}},
			"example.com widgets,widgets/* [CREATE UPDATE DELETE]; configmaps,configmaps/* [CREATE UPDATE DELETE]",
		},
		"Pods with their streams": {
			[]schema.GroupResource{{Resource: "pods"}},
			"pods,pods/* [CREATE UPDATE DELETE]; pods/exec,pods/attach,pods/portforward [CONNECT]; " +
				"configmaps,configmaps/* [CREATE UPDATE DELETE]",
		},
		"all of a group, which has no streams": {
			[]schema.GroupResource{{Group: "apps", Resource: "*"}},
			"apps */* [CREATE UPDATE DELETE]; configmaps,configmaps/* [CREATE UPDATE DELETE]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Name: "p", LeaseNamespace: "ns", LeaseName: "l", Username: "u", Resources: test.resources}
			policy, _, err := Objects(o)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range policy.Spec.MatchConstraints.ResourceRules {
				rule := fmt.Sprint(r.APIGroups[0], " ", strings.Join(r.Resources, ","), " ", r.Operations)
				got = append(got, strings.TrimSpace(rule))
			}
			if text := strings.Join(got, "; "); text != test.want {
				t.Errorf("got %s, want %s", text, test.want)
			}
		})
	}
}
