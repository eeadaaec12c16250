"use strict";
// The part of a picture that is seen: {x, y, width, height} in the picture's own units. Values in, values out.

/** As much as fits at nearly full size, from the top: all of the width, or the part around the first op at `x`. */
function firstView(picture, room, x) {
  const width = Math.max(room.width, Math.min(picture.width, room.width * 1.25));
  const height = width * room.height / room.width;
  const left = picture.width <= width ? (picture.width - width) / 2 : Math.min(Math.max(x - width / 2, 0), picture.width - width);
  return {x: left, y: Math.min(0, (picture.height - height) / 2), width, height};
}

/** All of it. */
function wholeView(picture, room) {
  const width = Math.max(picture.width, picture.height * room.width / room.height, 1);
  const height = width * room.height / room.width;
  return {x: (picture.width - width) / 2, y: (picture.height - height) / 2, width, height};
}

/** `factor` times as much of it, with the point (x, y) staying where it is. */
function zoomed(view, factor, x, y, picture) {
  const most = 1.2 * Math.max(picture.width, picture.height * view.width / view.height, 400);
  const width = Math.min(Math.max(view.width * factor, 120), most);
  const by = width / view.width;
  return {x: x - (x - view.x) * by, y: y - (y - view.y) * by, width, height: view.height * by};
}

/** Moved, but never so far that the picture is out of sight. */
function moved(view, dx, dy, picture) {
  const clamp = (value, low, high) => Math.min(Math.max(value, Math.min(low, high)), Math.max(low, high));
  const edge = 60;
  return {
    ...view,
    x: clamp(view.x + dx, edge - view.width, picture.width - edge),
    y: clamp(view.y + dy, edge - view.height, picture.height - edge),
  };
}

/** The same place, in a size that can be read: at most as much as fits at full size. */
function readable(view, room) {
  const width = Math.min(view.width, room.width);
  return {...view, width, height: width * room.height / room.width};
}

/** The same size, with (x, y) in the middle. */
function centred(view, x, y) {
  return {...view, x: x - view.width / 2, y: y - view.height / 2};
}
