// Clientgo-indexer asks ten questions about many clusters of what programs without federator have: client-go's Indexers,
// one for each type, filled with typed objects, and the loops around them. Federator's bench builds and runs it, and
// sets its times and memory beside federator's own.
//
// It reads objects from standard input, one JSON text a line: {"cluster": …, "resource": …, "object": …}. The first line
// is none of them but what is asked (Questions). It writes one JSON text (Report).
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"
)

// Report is what the program writes.
type Report struct {
	Go       string   `json:"go"`
	ClientGo string   `json:"client_go"`
	Objects  int      `json:"objects"`
	Seconds  float64  `json:"load_seconds"`
	Memory   Memory   `json:"memory"`
	Answers  []Answer `json:"answers"`
}

// Memory in bytes: of live objects on the heap, resident after the collector has given back what it can, and resident at
// most.
type Memory struct {
	Live     uint64 `json:"live"`
	Resident uint64 `json:"resident"`
	Peak     uint64 `json:"peak"`
}

// Answer of one question: what was found, as sorted lines of text, and what each round took, in seconds.
type Answer struct {
	Name    string    `json:"name"`
	Found   []string  `json:"found"`
	Seconds []float64 `json:"seconds"`
}

const maxLine = 16 << 20

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 1<<20), maxLine)
	if !lines.Scan() {
		return fmt.Errorf("nothing is asked: %w", lines.Err())
	}
	var questions Questions
	if err := json.Unmarshal(lines.Bytes(), &questions); err != nil {
		return fmt.Errorf("what is asked: %w", err)
	}
	inventory := NewInventory()
	began := time.Now()
	for lines.Scan() {
		if err := inventory.Take(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	report := Report{
		Go:       runtime.Version(),
		ClientGo: clientGoVersion(),
		Objects:  inventory.Len(),
		Seconds:  time.Since(began).Seconds(),
		Memory:   memory(),
	}
	for _, question := range questions.All(inventory) {
		answer, err := question.Measure(questions.Rounds)
		if err != nil {
			return fmt.Errorf("%s: %w", question.Name, err)
		}
		report.Answers = append(report.Answers, answer)
	}
	return json.NewEncoder(out).Encode(report)
}

func clientGoVersion() string {
	info, _ := debug.ReadBuildInfo()
	for _, module := range info.Deps {
		if module.Path == "k8s.io/client-go" {
			return module.Version
		}
	}
	return ""
}

func memory() Memory {
	peak := status("VmHWM:")
	debug.FreeOSMemory() // collects, too
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return Memory{Live: stats.HeapAlloc, Resident: status("VmRSS:"), Peak: peak}
}

// status reads a field of /proc/self/status in bytes.
func status(field string) uint64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(text), field)
	kilobytes, _ := strconv.ParseUint(strings.Fields(rest)[0], 10, 64)
	return kilobytes << 10
}
