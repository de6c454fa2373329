package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
	"sigs.k8s.io/yaml"
)

// Setting is a field that corresponds to a flag.
type Setting struct {
	Path string // in the file, such as reconciling.workers
	Flag string // the name of the flag
	// Text is the value of the field as it would be passed to the flag. IsSet reports whether the field is in the file.
	Text  string
	IsSet bool
}

// Settings returns the fields that correspond to flags, in the order of the types.
func (c *Configuration) Settings() (settings []Setting) {
	visit(reflect.ValueOf(c).Elem(), "", func(path, flag string, v reflect.Value) {
		s := Setting{Path: path, Flag: flag, IsSet: !v.IsNil()}
		if s.IsSet {
			s.Text = textOf(v)
		}
		settings = append(settings, s)
	})
	return settings
}

// New returns a configuration with the values of flags. value returns the value of a flag as text. Fields are absent if
// the text is empty.
func New(value func(flag string) string) (*Configuration, error) {
	c := &Configuration{}
	c.APIVersion, c.Kind = APIVersion, Kind
	var failed error
	visit(reflect.ValueOf(c).Elem(), "", func(path, flag string, v reflect.Value) {
		if err := setText(v, value(flag)); err != nil && failed == nil {
			failed = fmt.Errorf("%s: %w", path, err)
		}
	})
	return c, failed
}

// YAML returns the content of a configuration file.
func (c *Configuration) YAML() ([]byte, error) { return yaml.Marshal(c) }

// visit calls f for each field with a flag.
func visit(v reflect.Value, path string, f func(path, flag string, v reflect.Value)) {
	for i := range v.NumField() {
		declared := v.Type().Field(i)
		name := path + nameOf(declared)
		if flag := declared.Tag.Get("flag"); flag != "" {
			f(name, flag, v.Field(i))
		} else if declared.Type.Kind() == reflect.Struct && !declared.Anonymous {
			visit(v.Field(i), name+".", f)
		}
	}
}

// textOf returns the value of a field as it would be passed to its flag.
func textOf(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case []string:
		return strings.Join(value, ",")
	case logsapi.VModuleConfiguration:
		return logsapi.VModuleConfigurationPflag(&value).String()
	case map[string]bool:
		return cliflag.NewMapStringBool(&value).String()
	default:
		return fmt.Sprint(v.Elem().Interface())
	}
}

// setText sets a field to the value of a flag.
func setText(v reflect.Value, text string) (err error) {
	if text == "" || text == "[]" {
		return nil
	}
	var parsed any
	switch v.Interface().(type) {
	case []string:
		parsed = strings.Split(strings.Trim(text, "[]"), ",") // as pflag formats a list
	case logsapi.VModuleConfiguration:
		var modules logsapi.VModuleConfiguration
		err = logsapi.VModuleConfigurationPflag(&modules).Set(text)
		parsed = modules
	case map[string]bool:
		var gates map[string]bool
		err = cliflag.NewMapStringBool(&gates).Set(text)
		parsed = gates
	case *bool:
		parsed, err = pointer(strconv.ParseBool(text))
	case *int32:
		n, failed := strconv.ParseInt(text, 10, 32)
		parsed, err = pointer(int32(n), failed)
	case *float32:
		n, failed := strconv.ParseFloat(text, 32)
		parsed, err = pointer(float32(n), failed)
	default:
		parsed = &text
	}
	if err == nil {
		v.Set(reflect.ValueOf(parsed))
	}
	return err
}

func pointer[T any](value T, err error) (*T, error) { return &value, err }
