package main

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// Hostile Blueprints and their instances are rejected, and do not delay other Blueprints.
func TestAttack_HostileBlueprintsDoNotDelayOthers(t *testing.T) {
	a := newAPI(t)
	p, _ := a.platform(everything())
	a.serviceAccount(a.namespace, "web", rule(writeChildren, "", "configmaps,services"))
	a.consent(a.namespace, "web", "good."+a.group, "websites.laughs.hostile."+a.group,
		"websites.expensive.hostile."+a.group)
	websites := changed(websites, change{"spec:\n", "spec:\n" + runsAs + "\n"})
	a.apply(changed(websites, change{"name: websites.GROUP", "name: good.GROUP"}))
	a.apply(flowers)
	a.wait("GROUP/v1", "Website", "flowers", is("Ready", "True"))
	update := func(a *api, text string) time.Duration {
		a.Helper()
		began := time.Now()
		a.apply(strings.Replace(flowers, "roses", text, 1))
		a.wait("v1", "ConfigMap", "flowers-page", has(text, "data", "text"))
		return time.Since(began)
	}
	alone := update(a, "grown alone")
	hostile := *a
	hostile.group = "hostile." + a.group

	resource := func(i int, data string) string {
		return fmt.Sprintf(`
    - id: r%d
      template:
        apiVersion: v1
        kind: ConfigMap
        metadata: {name: "${self.metadata.name}-%d"}
        data: {a: %q}`, i, i, data)
	}
	blueprint := func(resources string) string { return websites[:strings.Index(websites, "    - id:")] + resources }
	var laughs, many strings.Builder
	laughs.WriteString(resource(0, strings.Repeat("ha", 500)))
	for i := 1; i < 20; i++ {
		laughs.WriteString(resource(i, strings.Repeat(fmt.Sprintf("${r%d.data.a}", i-1), 10)))
	}
	for i := range 100 {
		many.WriteString(resource(i, "${string(lists.range(300).all(a, lists.range(300).all(b, a + b >= 0)))}"))
	}
	for name, test := range map[string]struct {
		text string
		want []string // parts of the Accepted condition or, if that is True, of the instance's Ready condition
		ok   bool
	}{
		"laughs":    {text: blueprint(laughs.String()), ok: true, want: []string{"bytes"}},
		"expensive": {text: blueprint(many.String()), ok: true, want: []string{"cost"}},
		"deep": {text: blueprint(resource(0, "${"+strings.Repeat("(", 500)+"1"+strings.Repeat(")", 500)+"}")),
			want: []string{"spec.resources[0].template.data.a"}},
		"huge": {text: blueprint(resource(0, strings.Repeat("x", 140<<10))),
			want: []string{"spec.resources[0].template: has more than"}},
		"regexes": {text: blueprint(resource(0, "${string(self.metadata.name.matches('((a{1,100}){1,100}){1,100}'))}")),
			want: []string{"spec.resources[0].template.data.a"}},
	} {
		t.Run(name, func(t *testing.T) {
			h := hostile
			h.T, h.group = t, name+"."+hostile.group
			h.apply(test.text)
			if test.ok {
				h.waitBlueprint("websites", is("Serving", "True"))
				h.apply(flowers)
				h.wait("GROUP/v1", "Website", "flowers", is("Ready", "False", test.want...))
			} else {
				h.waitBlueprint("websites", is("Accepted", "False", test.want...))
			}
			good := *a
			good.T = t
			if took := update(&good, "updated after "+name); took > 5*time.Second+20*alone {
				t.Errorf("an instance of another Blueprint took %s, compared to %s before", took, alone)
			}
		})
	}
	if got := p.logged(line{Msg: "panic"}); len(got) > 0 {
		t.Errorf("a handler panicked: %+v", got)
	}
}
