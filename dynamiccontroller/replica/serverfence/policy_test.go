package serverfence

import (
	"strings"
	"testing"
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
