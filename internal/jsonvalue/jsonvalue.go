// Package jsonvalue converts values that are written in Go into the types into which JSON is decoded. Most functions
// for unstructured objects panic on other types, such as int, or ignore them.
package jsonvalue

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Error is returned for a value that JSON cannot represent. It does not contain the value.
type Error struct {
	// Path leads to the value. It consists of the names of fields, and of indexes such as "[0]".
	Path    []string
	Problem string
}

// Error begins with the path.
func (e *Error) Error() string { return PathText(e.Path) + ": " + e.Problem }

// PathText returns a path in the form spec.items[0].name.
func PathText(path []string) string {
	return strings.ReplaceAll(strings.Join(path, "."), ".[", "[")
}

// Object returns the fields of an object with values of the types nil, bool, int64, float64, string, []any and
// map[string]any. Values of other types are converted as encoding/json does, if this loses nothing. If all values have
// one of the types, Object returns the same map. The error joins an [*Error] for each value that cannot be converted.
func Object(fields map[string]any) (map[string]any, error) {
	if isDecoded(fields) {
		return fields, nil
	}
	converted, err := convert(nil, fields)
	if err != nil {
		return nil, err
	}
	return converted.(map[string]any), nil
}

// isDecoded reports whether a value has the types into which JSON is decoded.
func isDecoded(value any) bool {
	switch value := value.(type) {
	case nil, bool, int64, string:
		return true
	case float64:
		return !math.IsNaN(value) && !math.IsInf(value, 0)
	case []any:
		for _, item := range value {
			if !isDecoded(item) {
				return false
			}
		}
		return true
	case map[string]any:
		for _, field := range value {
			if !isDecoded(field) {
				return false
			}
		}
		return true
	}
	return false
}

func convert(path []string, value any) (any, error) {
	switch value := value.(type) {
	case json.Number:
		return number(path, value)
	case []any:
		if value == nil {
			return value, nil
		}
		return convertList(path, value)
	case map[string]any:
		if value == nil {
			return value, nil
		}
		return convertFields(path, value)
	}
	if isDecoded(value) {
		return value, nil
	}
	decoded, err := roundTrip(value)
	if err != nil {
		return nil, &Error{slices.Clone(path), err.Error()}
	}
	return convert(path, decoded) // converts numbers
}

func convertList(path []string, list []any) (any, error) {
	converted := make([]any, len(list))
	var errs []error
	for i, item := range list {
		var err error
		converted[i], err = convert(append(path, "["+strconv.Itoa(i)+"]"), item)
		errs = append(errs, err)
	}
	return converted, errors.Join(errs...)
}

func convertFields(path []string, fields map[string]any) (any, error) {
	converted := make(map[string]any, len(fields))
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		var err error
		converted[name], err = convert(append(path, name), fields[name])
		errs = append(errs, err)
	}
	return converted, errors.Join(errs...)
}

// number converts a number, unless it is an integer that int64 and float64 cannot hold.
func number(path []string, text json.Number) (any, error) {
	if integer, err := strconv.ParseInt(string(text), 10, 64); err == nil {
		return integer, nil
	}
	float, err := strconv.ParseFloat(string(text), 64)
	switch {
	case err != nil:
		return nil, &Error{slices.Clone(path), "must be a number that a float64 can hold"}
	case !strings.ContainsAny(string(text), ".eE"):
		return nil, &Error{slices.Clone(path), "must be an integer that an int64 can hold"}
	}
	return float, nil
}

// roundTrip encodes and decodes a value. Numbers are decoded as json.Number. The error contains the type of what cannot
// be encoded, but no value, except for numbers that are not finite.
func roundTrip(value any) (decoded any, err error) {
	data, err := json.Marshal(value)
	if err != nil {
		var unsupported *json.UnsupportedValueError
		if errors.As(err, &unsupported) {
			return nil, errors.New("must be a finite number")
		}
		return nil, fmt.Errorf("must have a type that JSON can represent, but is a %T", value)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if err := decoder.Decode(&decoded); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("must have a type that JSON can represent, but is a %T", value)
	}
	return decoded, nil
}
