package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	yamlv3 "go.yaml.in/yaml/v3"

	"github.com/dynamic-controller/engine/cmd/dynamic-controller/internal/blueprint"
)

// Load reads a configuration file. Its errors contain the name of the file and the paths of fields. It does not
// validate fields that correspond to a flag.
func Load(file string) (*Configuration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the configuration: %w", err)
	}
	c, err := decode(data)
	if err != nil {
		var errs []error
		for line := range strings.Lines(err.Error()) {
			errs = append(errs, fmt.Errorf("%s: %s", file, strings.TrimSpace(line)))
		}
		return nil, errors.Join(errs...)
	}
	return c, nil
}

func decode(data []byte) (*Configuration, error) {
	if err := isSingleDocument(data); err != nil {
		return nil, err
	}
	data, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var meta metav1.TypeMeta
	if err := json.Unmarshal(data, &meta); err != nil {
		return nil, fmt.Errorf("must be an object with apiVersion %s and kind %s", APIVersion, Kind)
	}
	if meta.APIVersion != APIVersion {
		return nil, fmt.Errorf("apiVersion: must be %s, got %q", APIVersion, meta.APIVersion)
	}
	if meta.Kind != Kind {
		return nil, fmt.Errorf("kind: must be %s, got %q", Kind, meta.Kind)
	}
	c := &Configuration{}
	strict, err := kjson.UnmarshalStrict(data, c)
	if err != nil {
		return nil, typeError(err)
	}
	errs := make([]error, 0, len(strict))
	for _, err := range strict {
		errs = append(errs, fieldError(err))
	}
	for _, err := range tracingapi.ValidateTracingConfiguration(c.Tracing, nil, field.NewPath("tracing")) {
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// isSingleDocument returns an error if data contains more than one document, because only the first one would be read.
func isSingleDocument(data []byte) error {
	documents := yamlv3.NewDecoder(bytes.NewReader(data))
	var node yamlv3.Node
	if err := documents.Decode(&node); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if err := documents.Decode(&node); !errors.Is(err, io.EOF) {
		return errors.New("must contain a single document")
	}
	return nil
}

// typeError adds the path to an error about a field of the wrong type. It returns other errors unchanged.
func typeError(err error) error {
	var mistyped *json.UnmarshalTypeError
	if !errors.As(err, &mistyped) {
		return err
	}
	want := map[reflect.Kind]string{
		reflect.Bool: "true or false", reflect.Int32: "an integer", reflect.Uint32: "an integer", reflect.Float32: "a number",
		reflect.String: "a string", reflect.Slice: "a list", reflect.Map: "an object", reflect.Struct: "an object",
	}[mistyped.Type.Kind()]
	return fmt.Errorf("%s: must be %s, got %s", mistyped.Field, want, mistyped.Value)
}

var unknownField = regexp.MustCompile(`^unknown field "(.*)"$`)

// fieldError adds a suggestion to the error about an unknown field.
func fieldError(err error) error {
	match := unknownField.FindStringSubmatch(err.Error())
	if match == nil {
		return err
	}
	path := strings.Split(match[1], ".")
	parent, name := path[:len(path)-1], path[len(path)-1]
	return fmt.Errorf("%s: unknown field%s", match[1], blueprint.Suggest(name, fieldsOf(parent)))
}

// fieldsOf returns the names of the fields of the object at a path.
func fieldsOf(path []string) (names []string) {
	t := reflect.TypeFor[Configuration]()
	for _, name := range path {
		next := slices.IndexFunc(reflect.VisibleFields(t), func(f reflect.StructField) bool { return nameOf(f) == name })
		if next < 0 {
			return nil
		}
		if t = reflect.VisibleFields(t)[next].Type; t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t.Kind() != reflect.Struct {
			return nil
		}
	}
	for _, f := range reflect.VisibleFields(t) {
		if name := nameOf(f); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// nameOf returns the name of a field in the file, or "" for an embedded struct.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}
