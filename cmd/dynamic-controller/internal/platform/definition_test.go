package platform

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestTheChosenVersion(t *testing.T) {
	type v = definedVersion
	for name, test := range map[string]struct {
		versions []definedVersion
		want     string // empty for none
	}{
		"is the stored one, though a newer one is served": {
			[]v{{name: "v1", served: true, storage: true}, {name: "v2", served: true}}, "v1",
		},
		"is the newest served one if the stored one is not served": {
			[]v{{name: "v1", served: true}, {name: "v2", storage: true}, {name: "v3", served: true}}, "v3",
		},
		"is a stable one rather than a beta of a later one": {
			[]v{{name: "v3beta1", served: true}, {name: "v2", served: true}, {name: "v4", storage: true}}, "v2",
		},
		"goes by numbers and not by letters": {
			[]v{{name: "v10", served: true}, {name: "v9", served: true}, {name: "v1", storage: true}}, "v10",
		},
		"is a beta if there is nothing stable": {
			[]v{{name: "v1alpha2", served: true}, {name: "v1beta1", served: true}, {name: "v1", storage: true}}, "v1beta1",
		},
		"is one whose name is no version if there is nothing else": {
			[]v{{name: "early", served: true}, {name: "v1", storage: true}}, "early",
		},
		"is none if none is served": {
			[]v{{name: "v1", storage: true}, {name: "v2"}}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, found := (&definition{versions: test.versions}).chosen()
			if got.name != test.want || found != (test.want != "") {
				t.Errorf("got %q, %t, want %q", got.name, found, test.want)
			}
		})
	}
}

func TestADefinitionKeepsWhatThePlatformReads(t *testing.T) {
	crd := testCRD("widgets", testVersion("v1"))
	crd.Labels = map[string]string{Label: "true"}
	crd.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": "large", "team": "blue"}
	crd.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(crd)
	if err != nil {
		t.Fatal(err)
	}

	once, err := slim(&unstructured.Unstructured{Object: content})
	if err != nil {
		t.Fatal(err)
	}
	twice, err := slim(once)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := twice.(*definition)
	if !ok || twice != once {
		t.Fatalf("slim is not idempotent: %T, %T", once, twice)
	}
	if d.Name != "widgets.example.com" || d.Labels[Label] != "true" || d.Annotations["team"] != "blue" || !d.established {
		t.Errorf("lost something: %+v", d)
	}
	if len(d.Annotations) != 1 || d.ManagedFields != nil {
		t.Errorf("kept what nobody reads: %+v", d.ObjectMeta)
	}
	if got := nameOf(d.gvr(d.versions[0])); got != "widgets.v1.example.com" {
		t.Errorf("its type is %s", got)
	}
}

func TestADefinitionThatCannotBeReadIsAnError(t *testing.T) {
	_, err := slim(&unstructured.Unstructured{Object: map[string]any{"spec": "nonsense"}})
	if err == nil {
		t.Error("no error")
	}
}

// testCRD is an established definition in the group example.com.
func testCRD(plural string, versions ...apiextensionsv1.CustomResourceDefinitionVersion) *apiextensionsv1.CustomResourceDefinition {
	versions[0].Storage = true
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + ".example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group:    "example.com",
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: plural},
			Versions: versions,
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
			{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
			{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
		}},
	}
}

// testVersion is a served version with all that the platform needs.
func testVersion(name string) apiextensionsv1.CustomResourceDefinitionVersion {
	type props = map[string]apiextensionsv1.JSONSchemaProps
	condition := props{"observedGeneration": {Type: "integer"}}
	for _, field := range []string{"type", "status", "lastTransitionTime", "reason", "message"} {
		condition[field] = apiextensionsv1.JSONSchemaProps{Type: "string"}
	}
	listType := "map"
	return apiextensionsv1.CustomResourceDefinitionVersion{
		Name:         name,
		Served:       true,
		Subresources: &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}},
		Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "object",
			Properties: props{"status": {Type: "object", Properties: props{
				"observedGeneration": {Type: "integer"},
				"conditions": {
					Type: "array", XListType: &listType, XListMapKeys: []string{"type"},
					Items: &apiextensionsv1.JSONSchemaPropsOrArray{
						Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: condition},
					},
				},
			}}},
		}},
	}
}
