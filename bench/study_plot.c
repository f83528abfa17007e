/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/study.h"

#include <cairo-svg.h>
#include <cairo.h>
#include <math.h>
#include <string.h>

/* Points of SVG, pixels of PNG at twice the size. */
enum { WIDTH = 760, HEIGHT = 440, LEFT = 78, RIGHT = 190, TOP = 46, BOTTOM = 58, PNG_SCALE = 2 };

/* Okabe and Ito's colours, told apart by most people who do not see all colours. */
static const unsigned COLOURS[] = {0x000000, 0xe69f00, 0x0072b2, 0xd55e00,
                                   0x009e73, 0xcc79a7, 0x56b4e9, 0x8c6d31};
enum { NUM_COLOURS = sizeof COLOURS / sizeof *COLOURS, NUM_MARKS = 4 };

struct chart {
    const char *title, *y_label;
    enum study_quantity quantity;
    double unit; /* what a value is divided by */
    bool log_y;
    const struct study_plan *plan;
    const struct study_axes *axes;
    int batch;
    double low, high; /* of y, in units */
};

static double across(const struct chart *chart, double length)
{
    const struct study_axes *axes = chart->axes;
    double first = log2(axes->lengths[0]), last = log2(axes->lengths[axes->num_lengths - 1]);
    double part = last > first ? (log2(length) - first) / (last - first) : 0.5;
    return LEFT + part * (WIDTH - LEFT - RIGHT);
}

static double up(const struct chart *chart, double y)
{
    double low = chart->low, high = chart->high;
    double part =
        chart->log_y ? (log(y) - log(low)) / (log(high) - log(low)) : (y - low) / (high - low);
    return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM);
}

static struct study_value value_at(const struct chart *chart, int system, int length)
{
    struct study_value value =
        study_value(chart->plan, chart->axes->systems[system], chart->axes->lengths[length],
                    chart->batch, chart->quantity);
    value.median /= chart->unit;
    value.least /= chart->unit;
    value.greatest /= chart->unit;
    return value;
}

/* 1, 2 or 5 times a power of ten, so that about five steps fill the range. */
static double nice_step(double range)
{
    double power = pow(10, floor(log10(range / 5)));
    double part = range / 5 / power;
    return power * (part > 5 ? 10 : part > 2 ? 5 : part > 1 ? 2 : 1);
}

/* False: nothing was measured. */
static bool find_range(struct chart *chart)
{
    double least = INFINITY, greatest = 0;
    for (int s = 0; s < chart->axes->num_systems; s++)
        for (int l = 0; l < chart->axes->num_lengths; l++) {
            struct study_value value = value_at(chart, s, l);
            if (value.count == 0 || !(value.least > 0))
                continue;
            least = fmin(least, value.least);
            greatest = fmax(greatest, value.greatest);
        }
    if (!(greatest > 0))
        return false;
    if (chart->log_y) {
        chart->low = pow(10, floor(log10(least)));
        chart->high = pow(10, ceil(log10(greatest * 1.01)));
    } else {
        double step = nice_step(greatest * 1.05);
        chart->low = 0;
        chart->high = ceil(greatest * 1.02 / step) * step;
    }
    return true;
}

enum align { ALIGN_LEFT, ALIGN_CENTRE, ALIGN_RIGHT };

static void text(cairo_t *cr, double x, double y, enum align align, const char *string)
{
    cairo_text_extents_t extents;
    cairo_text_extents(cr, string, &extents);
    double shift = align == ALIGN_LEFT ? 0 : align == ALIGN_CENTRE ? 0.5 : 1;
    cairo_move_to(cr, x - shift * extents.x_advance, y);
    cairo_show_text(cr, string);
}

static void grid_line(cairo_t *cr, double x0, double y0, double x1, double y1)
{
    cairo_set_source_rgb(cr, 0.88, 0.88, 0.88);
    cairo_set_line_width(cr, 1);
    cairo_move_to(cr, x0, y0);
    cairo_line_to(cr, x1, y1);
    cairo_stroke(cr);
    cairo_set_source_rgb(cr, 0.2, 0.2, 0.2);
}

static void y_tick(cairo_t *cr, const struct chart *chart, double y)
{
    char label[32];
    snprintf(label, sizeof label, "%.6g", y);
    grid_line(cr, LEFT, up(chart, y), WIDTH - RIGHT, up(chart, y));
    text(cr, LEFT - 8, up(chart, y) + 4, ALIGN_RIGHT, label);
}

static void draw_axes(cairo_t *cr, const struct chart *chart)
{
    cairo_set_font_size(cr, 12);
    if (chart->log_y) {
        bool many = chart->high > chart->low * 1e4;
        for (double y = chart->low; y <= chart->high * 1.001; y *= 10)
            for (int part = 1; part <= (many ? 1 : 5); part += part == 1 ? 1 : 3)
                if (y * part <= chart->high * 1.001)
                    y_tick(cr, chart, y * part);
    } else {
        double step = nice_step(chart->high);
        for (int i = 0; i * step <= chart->high * 1.001; i++)
            y_tick(cr, chart, i * step);
    }
    for (int l = 0; l < chart->axes->num_lengths; l++) {
        char label[16];
        double x = across(chart, chart->axes->lengths[l]);
        snprintf(label, sizeof label, "%d", chart->axes->lengths[l]);
        grid_line(cr, x, TOP, x, HEIGHT - BOTTOM);
        text(cr, x, HEIGHT - BOTTOM + 18, ALIGN_CENTRE, label);
    }
    cairo_set_font_size(cr, 13);
    text(cr, (LEFT + WIDTH - RIGHT) / 2.0, HEIGHT - 14, ALIGN_CENTRE,
         "generated tokens (log\xe2\x82\x82 scale)");
    cairo_save(cr);
    cairo_translate(cr, 20, (TOP + HEIGHT - BOTTOM) / 2.0);
    cairo_rotate(cr, -M_PI / 2);
    text(cr, 0, 0, ALIGN_CENTRE, chart->y_label);
    cairo_restore(cr);
    cairo_set_font_size(cr, 15);
    text(cr, LEFT, 26, ALIGN_LEFT, chart->title);
}

/* A disc, a square, a triangle or a diamond. */
static void mark(cairo_t *cr, double x, double y, int kind, double r)
{
    switch (kind) {
    case 0:
        cairo_arc(cr, x, y, r, 0, 2 * M_PI);
        break;
    case 1:
        cairo_rectangle(cr, x - r + 0.5, y - r + 0.5, 2 * r - 1, 2 * r - 1);
        break;
    case 2:
        cairo_move_to(cr, x, y - r - 1);
        cairo_line_to(cr, x + r + 0.5, y + r - 0.5);
        cairo_line_to(cr, x - r - 0.5, y + r - 0.5);
        cairo_close_path(cr);
        break;
    default:
        cairo_move_to(cr, x, y - r - 1);
        cairo_line_to(cr, x + r + 1, y);
        cairo_line_to(cr, x, y + r + 1);
        cairo_line_to(cr, x - r - 1, y);
        cairo_close_path(cr);
    }
    cairo_fill(cr);
}

/* How large the lines and marks of a system are: those before it show around it where they have the
 * same values. */
static double size_of(const struct chart *chart, int system)
{
    int others = chart->axes->num_systems - 1;
    return others > 0 ? 1 + 0.8 * (others - system) / others : 1;
}

/* Colour, mark and dashes of a system: together no two of the presets look alike. */
static void choose_pen(cairo_t *cr, const struct chart *chart, int system)
{
    unsigned rgb = COLOURS[system % NUM_COLOURS];
    static const double dashes[] = {6, 3};
    cairo_set_source_rgb(cr, (rgb >> 16) / 255.0, (rgb >> 8 & 255) / 255.0, (rgb & 255) / 255.0);
    cairo_set_line_width(cr, 2 * size_of(chart, system));
    cairo_set_dash(cr, dashes, system / NUM_COLOURS % 2 == 1 ? 2 : 0, 0);
}

static void draw_mark(cairo_t *cr, const struct chart *chart, int system, double x, double y)
{
    mark(cr, x, y, (system + system / NUM_COLOURS) % NUM_MARKS, 4 * size_of(chart, system));
}

static void draw_system(cairo_t *cr, const struct chart *chart, int system)
{
    const struct study_axes *axes = chart->axes;
    bool begun = false;
    choose_pen(cr, chart, system);
    for (int l = 0; l < axes->num_lengths; l++) {
        struct study_value value = value_at(chart, system, l);
        if (value.count == 0)
            continue;
        double x = across(chart, axes->lengths[l]), y = up(chart, value.median);
        if (begun)
            cairo_line_to(cr, x, y);
        else
            cairo_move_to(cr, x, y);
        begun = true;
    }
    cairo_stroke(cr);
    cairo_set_dash(cr, NULL, 0, 0);
    for (int l = 0; l < axes->num_lengths; l++) {
        struct study_value value = value_at(chart, system, l);
        if (value.count == 0)
            continue;
        double x = across(chart, axes->lengths[l]);
        cairo_set_line_width(cr, 1);
        cairo_move_to(cr, x, up(chart, value.least));
        cairo_line_to(cr, x, up(chart, value.greatest));
        cairo_stroke(cr);
        draw_mark(cr, chart, system, x, up(chart, value.median));
    }
}

static void draw_legend(cairo_t *cr, const struct chart *chart)
{
    int count = chart->axes->num_systems;
    double room = HEIGHT - TOP - BOTTOM, line = room / count < 22 ? room / count : 22;
    cairo_set_font_size(cr, line < 15 ? line * 0.8 : 12);
    for (int s = 0; s < count; s++) {
        double x = WIDTH - RIGHT + 16, y = TOP + 8 + s * line;
        choose_pen(cr, chart, s);
        cairo_move_to(cr, x, y);
        cairo_line_to(cr, x + 26, y);
        cairo_stroke(cr);
        cairo_set_dash(cr, NULL, 0, 0);
        draw_mark(cr, chart, s, x + 13, y);
        cairo_set_source_rgb(cr, 0.2, 0.2, 0.2);
        text(cr, x + 34, y + 4, ALIGN_LEFT, chart->axes->systems[s]);
    }
}

static void draw(cairo_t *cr, const struct chart *chart)
{
    cairo_set_source_rgb(cr, 1, 1, 1);
    cairo_paint(cr);
    cairo_set_source_rgb(cr, 0.2, 0.2, 0.2);
    cairo_select_font_face(cr, "sans-serif", CAIRO_FONT_SLANT_NORMAL, CAIRO_FONT_WEIGHT_NORMAL);
    draw_axes(cr, chart);
    for (int s = 0; s < chart->axes->num_systems; s++)
        draw_system(cr, chart, s);
    draw_legend(cr, chart);
}

static int write_chart(const struct chart *chart, const char *base, struct error *err)
{
    char path[4096 + 8];
    snprintf(path, sizeof path, "%s.svg", base);
    cairo_surface_t *surface = cairo_svg_surface_create(path, WIDTH, HEIGHT);
    cairo_t *cr = cairo_create(surface);
    draw(cr, chart);
    cairo_destroy(cr);
    cairo_surface_finish(surface);
    cairo_status_t status = cairo_surface_status(surface);
    cairo_surface_destroy(surface);
    if (status == CAIRO_STATUS_SUCCESS) {
        snprintf(path, sizeof path, "%s.png", base);
        surface =
            cairo_image_surface_create(CAIRO_FORMAT_RGB24, WIDTH * PNG_SCALE, HEIGHT * PNG_SCALE);
        cr = cairo_create(surface);
        cairo_scale(cr, PNG_SCALE, PNG_SCALE);
        draw(cr, chart);
        cairo_destroy(cr);
        status = cairo_surface_write_to_png(surface, path);
        cairo_surface_destroy(surface);
    }
    if (status != CAIRO_STATUS_SUCCESS)
        return error_set(err, ERROR_IO, "%s: %s", path, cairo_status_to_string(status));
    return 0;
}

int study_plots(const char *directory, const struct study_plan *plan, const struct study_axes *axes,
                struct error *err)
{
    static const struct chart CHARTS[] = {
        {.title = "Time for prompt and generation, batch %d",
         .y_label = "seconds (log scale)",
         .quantity = STUDY_TOTAL_S,
         .unit = 1,
         .log_y = true},
        {.title = "Memory in use at the end, batch %d",
         .y_label = "MiB: weights, states, KV, workspace",
         .quantity = STUDY_BYTES,
         .unit = 1024.0 * 1024.0},
        {.title = "State of the texts at the end, batch %d",
         .y_label = "MiB: recurrent state and KV (log scale)",
         .quantity = STUDY_STATE_BYTES,
         .unit = 1024.0 * 1024.0,
         .log_y = true},
        {.title = "Speed, batch %d",
         .y_label = "generated tokens per second",
         .quantity = STUDY_TOKENS_PER_SECOND,
         .unit = 1},
        {.title = "Time per token at a length, batch %d",
         .y_label = "ms, median of turns and its 95 % interval",
         .quantity = STUDY_MS_PER_TOKEN,
         .unit = 1},
    };
    static const char *const NAMES[] = {"time", "memory", "state", "speed", "token"};
    for (int b = 0; b < axes->num_batches; b++)
        for (size_t i = 0; i < sizeof CHARTS / sizeof *CHARTS; i++) {
            struct chart chart = CHARTS[i];
            char title[96], base[4096];
            snprintf(title, sizeof title, "%s", chart.title);
            char *number = strstr(title, "%d");
            snprintf(number, sizeof title - (size_t)(number - title), "%d", axes->batches[b]);
            chart.title = title;
            chart.plan = plan;
            chart.axes = axes;
            chart.batch = axes->batches[b];
            if (!find_range(&chart))
                continue;
            if (snprintf(base, sizeof base, "%s/%s-b%d", directory, NAMES[i], chart.batch) >=
                (int)sizeof base)
                return error_set(err, ERROR_INVALID, "--out: the path is too long");
            if (write_chart(&chart, base, err) != 0)
                return -1;
        }
    return 0;
}
