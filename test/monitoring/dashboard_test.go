package monitoring

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

type dashboard struct {
	UID        string `json:"uid"`
	Title      string `json:"title"`
	Templating struct {
		List []variable `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type variable struct {
	Name       string      `json:"name"`
	Type       string      `json:"type"`
	Definition string      `json:"definition"`
	Datasource *datasource `json:"datasource"`
}

type datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

type panel struct {
	ID          int         `json:"id"`
	Type        string      `json:"type"`
	Title       string      `json:"title"`
	Description string      `json:"description"`
	Datasource  *datasource `json:"datasource"`
	GridPos     struct {
		X int `json:"x"`
		Y int `json:"y"`
		W int `json:"w"`
		H int `json:"h"`
	} `json:"gridPos"`
	FieldConfig struct {
		Defaults struct {
			Unit string `json:"unit"`
		} `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		Datasource *datasource `json:"datasource"`
		Expr       string      `json:"expr"`
		Legend     string      `json:"legendFormat"`
	} `json:"targets"`
}

func loadDashboard(t *testing.T) dashboard {
	t.Helper()
	var d dashboard
	if err := json.Unmarshal(read(t, "monitoring/dashboard.json"), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// grafana replaces the variables of Grafana in queries.
var grafana = strings.NewReplacer("$__rate_interval", "5m", "$__range", "3h", "$top", "10")

// anyDatasource is the data source that the user selects.
var anyDatasource = datasource{Type: "prometheus", UID: "${datasource}"}

func (d *datasource) isVariable() bool { return d != nil && *d == anyDatasource }

func TestDashboard_UsesExportedMetricsOfTheSelectedInstallation(t *testing.T) {
	exported := loadMetrics(t)
	for _, p := range loadDashboard(t).Panels {
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || !p.Datasource.isVariable() {
			t.Errorf("%s: got %d queries of the data source %v", p.Title, len(p.Targets), p.Datasource)
		}
		for _, target := range p.Targets {
			if err := exported.check(grafana.Replace(target.Expr)); err != nil {
				t.Errorf("%s: %s: %v", p.Title, target.Expr, err)
			}
			if !strings.Contains(target.Expr, `namespace="$namespace", job="$job"`) || !target.Datasource.isVariable() {
				t.Errorf("%s: the query does not use the variables: %s", p.Title, target.Expr)
			}
			isBounded := !strings.Contains(target.Legend, "resource") && p.Type != "table" ||
				strings.HasPrefix(target.Expr, "topk(") || strings.HasPrefix(target.Expr, "ALERTS")
			if !isBounded {
				t.Errorf("%s: the number of series depends on the number of types: %s", p.Title, target.Expr)
			}
		}
	}
}

func TestDashboard_IsComplete(t *testing.T) {
	d := loadDashboard(t)
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
		isValid := v.Datasource.isVariable() && strings.Contains(v.Definition, "dynamiccontroller_build_info")
		if v.Type == "query" && !isValid {
			t.Errorf("variable %s: got %s of the data source %v", v.Name, v.Definition, v.Datasource)
		}
	}
	if !slices.Equal(variables, []string{"datasource", "namespace", "job", "top"}) {
		t.Errorf("got the variables %v", variables)
	}
	var rows []string
	ids, cells := map[int]bool{}, map[[2]int]string{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%s: the ID %d is not unique", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			rows = append(rows, p.Title)
		} else if p.FieldConfig.Defaults.Unit == "" || p.Description == "" {
			t.Errorf("%s: the unit or the description is missing", p.Title)
		}
		p.place(t, cells)
	}
	want := []string{"Health and leadership", "Types and objects", "Queue and latency", "API requests", "Process"}
	if !slices.Equal(rows, want) {
		t.Errorf("got the rows %q, want %q", rows, want)
	}
}

// place checks that the panel does not overlap with another one. Grafana has 24 columns.
func (p panel) place(t *testing.T, cells map[[2]int]string) {
	t.Helper()
	if p.GridPos.X+p.GridPos.W > 24 {
		t.Errorf("%s is too wide", p.Title)
	}
	for x := range p.GridPos.W {
		for y := range p.GridPos.H {
			cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
			if other := cells[cell]; other != "" {
				t.Errorf("%s overlaps with %s", p.Title, other)
				return
			}
			cells[cell] = p.Title
		}
	}
}
